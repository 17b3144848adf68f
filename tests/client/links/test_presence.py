"""A client enters only a directory that is its user's alone, and stays known there whoever tidies up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mmcached.client import KVEventSubscriber
from mmcached.client.links.presence import KEEP_INTERVAL_S, Presence
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError
from mmcached.wire.kv_events_config import KVEventsConfig
from mmcached.wire.messages.client import Stats
from mmcached.wire.paths import RunDir
from tests.client.blocking import Make
from tests.client.services import fake_service, silent
from tests.clock import Clock


@pytest.fixture(params=["open", "link", "somebody else's"])
def foreign_dir(request: pytest.FixtureRequest, run_dir: Path) -> Path:
    path = run_dir / "d"
    directory = RunDir(path)
    directory.create()
    ServiceConfig(kv_events=KVEventsConfig(enable_kv_cache_events=True)).save(directory.config)
    match request.param:
        case "open":
            path.chmod(0o711)
        case "link":
            link = run_dir / "link"
            link.symlink_to(path)
            return link
        case _:
            if os.geteuid() != 0:
                pytest.skip("only root can give a directory away")
            os.chown(path, 65534, 65534)
    return path


def test_nothing_is_said_in_a_directory_of_others(foreign_dir: Path, make: Make) -> None:
    """However forgiving the client is: this is no dead service, and no miss."""
    with pytest.raises(ConfigError, match="run_dir"), make(foreign_dir, fail_open=True):
        pass
    with pytest.raises(ConfigError, match="run_dir"):
        KVEventSubscriber.of_service(foreign_dir)
    assert list((foreign_dir / "clients").iterdir()) == [], "no lock was made there"


def test_a_directory_that_others_have_got_meanwhile_is_not_greeted(run_dir: Path, make: Make) -> None:
    path = run_dir / "d"
    with make(path) as client:  # nothing is there yet
        with fake_service(path, silent) as received:
            path.chmod(0o777)
            with pytest.raises(ConfigError, match="chmod 0700"):
                client.generate("private")
            path.chmod(0o700)
        assert received == []


def test_a_lock_that_somebody_has_removed_is_taken_again(run_dir: Path) -> None:
    directory = RunDir(run_dir)
    directory.create()
    clock = Clock()
    presence = Presence(directory, "me", clock=clock)
    try:
        directory.client_lock("me").unlink()
        presence.keep()
        assert not directory.client_lock("me").exists(), "it is not looked at in every call"
        clock.now += KEEP_INTERVAL_S
        presence.keep()
        assert directory.client_lock("me").exists()
        (run_dir / "clients" / "me.lock").unlink()
        (run_dir / "clients").rmdir()
        clock.now += KEEP_INTERVAL_S
        presence.keep()  # cannot, and says nothing: the next call is refused with its reason
    finally:
        presence.close()


def test_a_call_keeps_the_lock(run_dir: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmcached.client.links.presence.KEEP_INTERVAL_S", 0.0)
    with fake_service(run_dir, lambda message: [Stats(1, {})]), make(run_dir) as client:
        (lock,) = (run_dir / "clients").iterdir()
        lock.unlink()
        client.stats()
        assert lock.exists()


def test_a_presence_that_ends_while_it_is_renewed_leaves_nothing(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client is closed while the thread that reads for all has just found the connection lost."""
    RunDir(run_dir).create()
    presence = Presence(RunDir(run_dir), "0" * 32)
    path = RunDir(run_dir).client_lock("0" * 32)
    path.unlink()
    check = RunDir.check

    def end_meanwhile(directory: RunDir) -> None:
        check(directory)
        presence.close()

    monkeypatch.setattr(RunDir, "check", end_meanwhile)
    presence.renew()
    assert not path.exists()
    presence.renew()
    assert not path.exists(), "it is over"
