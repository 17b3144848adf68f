"""Each check of a service fails where it cannot be used, and passes against a frontend of its own process."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest

from mmcached.cli.admin.records import StoreOnlooker
from mmcached.cli.doctor import service
from mmcached.cli.doctor.checkup import run_checks
from mmcached.cli.doctor.finding import CheckedHost
from mmcached.cli.serve.seat import Seat
from mmcached.shm import sweep
from mmcached.shm.segment.ring_notes import noted_rings, remove_notes
from mmcached.shm.segment.segment import unlink
from mmcached.wire.config import MIB, ServiceConfig
from mmcached.wire.errors import SegmentError
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.unix_sockets import NamedSocket
from mmcached.wire.version import VERSION_FIELD
from tests.integration.lone_frontend import LoneFrontend

STORE = ServiceConfig(world_size=0, store_gb=4 * MIB / (1 << 30), store_max_clients=4)


def test_the_run_directory(run_dir: Path) -> None:
    directory = run_dir / "d"
    assert "not there yet" in service.run_directory(CheckedHost(directory)).what
    directory.mkdir(mode=0o700)
    assert service.run_directory(CheckedHost(directory)).level == "ok"
    run_dir.chmod(0o777)
    found = service.run_directory(CheckedHost(directory))
    assert (found.level, f"others may rename what is in {run_dir}" in found.what) == ("warning", True)
    run_dir.chmod(0o700)
    directory.chmod(0o755)
    found = service.run_directory(CheckedHost(directory))
    assert (found.level, found.fix) == ("problem", f"chmod 0700 {directory}")
    found = service.run_directory(CheckedHost(run_dir / ("long" * 30)))
    assert (found.level, "unix socket path limit" in found.what) == ("problem", True), found


def test_a_run_directory_that_this_user_cannot_make_is_a_problem(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode, **_: Path(path) != run_dir)
    found = service.run_directory(CheckedHost(run_dir / "a" / "b"))
    assert (found.level, f"nothing can be made in {run_dir}" in found.what) == ("problem", True), found
    assert "--run-dir DIR" in found.fix


def test_another_version(run_dir: Path) -> None:
    assert "no service has run here" in service.versions(CheckedHost(run_dir)).what
    STORE.save(RunDir(run_dir).config)
    assert "as the last here" in service.versions(CheckedHost(run_dir)).what
    fields = json.loads(RunDir(run_dir).config.read_bytes())
    RunDir(run_dir).config.write_text(json.dumps({**fields, VERSION_FIELD: 1}))
    found = service.versions(CheckedHost(run_dir))
    assert (found.level, "protocol version 1" in found.what) == ("problem", True), found


def test_a_record_and_an_item_go_round_until_the_frontend_is_dead(run_dir: Path) -> None:
    host = CheckedHost(run_dir, STORE)
    assert "not tried" in service.round_trip(host).what
    assert "not tried" in service.engine(host).what
    with LoneFrontend(run_dir, STORE) as frontend, Seat(RunDir(run_dir)):
        assert "just starting" in service.engine(host).what, "nobody listens for commands yet"
        with contextlib.closing(NamedSocket(RunDir(run_dir).http_socket, 8).socket):
            found = service.round_trip(host)
            assert (found.level, found.what.startswith("128 KiB: put in")) == ("ok", True), found
            found = service.engine(host)
            assert (found.level, "it is a store" in found.what) == ("ok", True), found
            with StoreOnlooker(run_dir) as store:
                assert store.list_keys("*", None, 10).keys == [], "the record was dropped"
            for name in noted_names(run_dir):
                assert unlink(name)
            found = service.round_trip(host)
            assert (found.level, "was deleted from /dev/shm while the service runs" in found.what) == (
                "problem",
                True,
            ), found
            assert found.fix == f"mmcached drain --run-dir {run_dir}, then serve"
            found = service.engine(host)
            assert (found.level, "clients that come now get copies; restart" in found.what) == ("ok", True), "as ping"
            frontend.kill()
            assert service.round_trip(host).level == "problem"
            assert service.engine(host).level == "problem"
    remove_notes(run_dir)
    sweep()


def noted_names(run_dir: Path) -> list[str]:
    return [name for note in noted_rings(run_dir) for name in (note.ring.ctl_name, note.ring.data_name)]


def test_a_check_that_cannot_be_made_keeps_no_other_from_it(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(host: CheckedHost) -> None:
        raise SegmentError("broken")

    monkeypatch.setattr("mmcached.cli.doctor.checkup.CHECKS", {"a": broken, "b": service.run_directory})
    (name, first), (_, second) = run_checks(CheckedHost(run_dir))
    assert (name, first.level, first.what) == ("a", "warning", "could not be checked: broken")
    assert second.level == "ok"
