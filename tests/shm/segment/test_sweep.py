"""Other services and test sessions may share this machine: only names of this test's rings are looked at."""

from __future__ import annotations

import importlib
import os
import secrets
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import posix_ipc
import pytest

from mmcached.shm import RingReader, sweep
from mmcached.shm.files.own_file import open_own
from mmcached.shm.segment import segment
from mmcached.shm.segment.ring_notes import remove_note
from mmcached.wire.handle import Handle, RingAnnouncement
from tests.shm.processes import Process
from tests.shm.rings import leave_ring, make_ring, overwritten


def swept(*names: str) -> list[str]:
    """Sweep; return which of these names it removed, in its order."""
    return [name for name in sweep() if name in names]


def names_of(*announcements: RingAnnouncement) -> list[str]:
    return [name for one in announcements for name in (one.data_name, one.ctl_name)]


def make_object(name: str) -> None:
    os.close(posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600).fd)


def test_a_killed_writer_is_swept_while_a_living_one_and_an_old_mapping_stay() -> None:
    with make_ring() as living, Process() as process:
        announcement = msgspec.convert(process.ask("create", 1 << 16), RingAnnouncement)
        handle = msgspec.convert(process.ask("put", 1000, 5), Handle)
        with RingReader.open(announcement) as reader:
            early = reader.view(handle)
            names = names_of(announcement, living.announcement)
            assert swept(*names) == []
            process.kill()
            assert swept(*names) == names_of(announcement)
            assert swept(*names) == []
            assert set(segment.leftover_names(os.getuid())) & set(names) == set(names_of(living.announcement))
            assert early.tolist() == [5] * 1000
            assert reader.view(handle).tolist() == [5] * 1000
            del early


def test_orphans_of_a_half_finished_sweep_or_creation_go() -> None:
    uid = os.getuid()
    data = f"/mmc.{uid}.{secrets.token_hex(16)}.data"
    ctl = f"/mmc.{uid}.{secrets.token_hex(16)}.ctl"
    make_object(data)
    make_object(ctl)
    assert sorted(swept(data, ctl)) == sorted([data, ctl])


def test_other_users_and_other_names_are_not_touched() -> None:
    uid = os.getuid()
    ring_id = secrets.token_hex(16)
    foreign = [f"/mmc.{uid + 1}.{ring_id}.ctl", f"/mmc.{uid}.{ring_id[1:]}.ctl", f"/mmc.{uid}.{ring_id}.data.old"]
    try:
        for name in foreign:
            make_object(name)
        assert swept(*foreign) == []
    finally:
        for name in foreign:
            segment.unlink(name)


def test_a_name_that_leads_elsewhere_by_now_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another sweep and a new service were faster, between our open and our lock."""
    name = f"/mmc.{os.getuid()}.{secrets.token_hex(16)}.ctl"
    make_object(name)

    def open_then_lose(path: Path) -> int:
        fd = open_own(path)
        if path.name == name.lstrip("/"):
            segment.unlink(name)
            make_object(name)
        return fd

    module = importlib.import_module("mmcached.shm.segment.sweep")  # the package has a function of that name
    monkeypatch.setattr(module, "open_own", open_then_lose)
    try:
        assert swept(name) == []
        assert name in segment.leftover_names(os.getuid())
    finally:
        segment.unlink(name)


def test_a_ring_stays_while_its_run_directory_has_a_note_of_it(tmp_path: Path) -> None:
    noted, forgotten = leave_ring(tmp_path, "a"), leave_ring(tmp_path, "b")
    names = names_of(noted, forgotten)
    assert swept(*names) == []
    remove_note(tmp_path, "b")
    assert swept(*names) == names_of(forgotten)
    shutil.rmtree(tmp_path)
    assert swept(*names) == names_of(noted)


def test_nurseries_stay_with_their_ring_and_go_with_it(tmp_path: Path) -> None:
    noted = leave_ring(tmp_path)
    mine = [noted.nursery_name(3), noted.nursery_name(12)]
    for name in mine:
        make_object(name)
    with make_ring() as living:
        living.nurseries.create(1, 1 << 20, first_bytes=4096)
        empty = living.announcement.nursery_name(1)
        assert swept(*mine, empty) == [], "between two frontends, and an empty one of a writer that lives"
        living.outlives_writer = True
    remove_note(tmp_path, "store")
    assert sorted(swept(*mine, empty)) == sorted([*mine, empty])


def test_a_nursery_that_was_made_after_the_look_at_the_names_goes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a writer that was killed then."""
    name = f"/mmc.{os.getuid()}.{secrets.token_hex(16)}"
    make_object(f"{name}.ctl")

    def make_then_open(path: Path) -> int:
        if path.name == f"{name}.ctl".lstrip("/"):
            make_object(f"{name}.nursery1")
        return open_own(path)

    monkeypatch.setattr(importlib.import_module("mmcached.shm.segment.sweep"), "open_own", make_then_open)
    try:
        assert swept(f"{name}.ctl", f"{name}.nursery1") == [f"{name}.nursery1", f"{name}.ctl"]
    finally:
        segment.unlink(f"{name}.nursery1")


@pytest.mark.parametrize("step", [-1, 1])
def test_a_ring_of_another_version_stays_too(tmp_path: Path, step: int) -> None:
    ring = leave_ring(tmp_path)
    with overwritten(ring.ctl_name) as words:
        words[1] += step
    note = {"what": 1, "ring": {"id": ring.ring_id}, "version": -1}
    (tmp_path / "store.ring").write_bytes(msgspec.json.encode(note))
    assert swept(*names_of(ring)) == []
    remove_note(tmp_path, "store")
    assert swept(*names_of(ring)) == names_of(ring)


@contextmanager
def planted() -> Iterator[set[str]]:
    """Put everything under our names that another user could put there; yield the names."""
    uid = os.getuid()
    with ExitStack() as stack:
        names = set()

        def new(suffix: str) -> Path:
            path = Path(f"/dev/shm/mmc.{uid}.{secrets.token_hex(16)}.{suffix}")
            names.add(f"/{path.name}")
            return path

        for suffix in ("ctl", "data"):
            link = new(suffix)
            link.symlink_to("/nowhere")
            stack.callback(link.unlink)
            loop = new(suffix)
            loop.symlink_to(loop)
            stack.callback(loop.unlink)
            directory = new(suffix)
            directory.mkdir()
            stack.callback(directory.rmdir)
            pipe = new(suffix)
            os.mkfifo(pipe)
            stack.callback(pipe.unlink)
            bound = new(suffix)
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(bound))
            stack.callback(bound.unlink)
            if uid == 0:
                foreign = new(suffix)
                foreign.touch()
                os.chown(foreign, 65534, 65534)
                stack.callback(foreign.unlink)
        yield names


def test_what_others_plant_stops_no_sweep_and_stays_theirs() -> None:
    empty = f"/mmc.{os.getuid()}.{secrets.token_hex(16)}.ctl"
    last = f"/mmc.{os.getuid()}.{'f' * 32}.ctl"
    with planted() as names:
        make_object(empty)
        make_object(last)
        assert sorted(swept(*names, empty, last)) == sorted([empty, last])
        assert all(stat.S_IFMT(Path(f"/dev/shm{name}").lstat().st_mode) for name in names)
        assert not names & set(segment.leftover_names(os.getuid()))


def test_a_data_object_that_was_replaced_keeps_no_control_object_alive() -> None:
    stem = f"/mmc.{os.getuid()}.{secrets.token_hex(16)}"
    make_object(f"{stem}.ctl")
    other = Path(f"/dev/shm{stem}.data")
    other.mkdir()
    try:
        assert swept(f"{stem}.ctl", f"{stem}.data") == [f"{stem}.ctl"]
    finally:
        other.rmdir()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_link_of_another_user_stops_no_sweep() -> None:
    path = Path(f"/dev/shm/mmc.0.{secrets.token_hex(16)}.ctl")
    other_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    subprocess.run([*other_user, "ln", "-s", "/nowhere", str(path)], check=True)
    try:
        sweep()
    finally:
        path.unlink()
