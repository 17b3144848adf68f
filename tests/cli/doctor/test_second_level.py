"""What is said of a second level: none, a bad URL, nobody there, and real servers of several minds."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmcached.cli.doctor.finding import CheckedHost, Finding
from mmcached.cli.doctor.second_level import second_level
from mmcached.second_level.epoch_note import EpochNote
from mmcached.second_level.versions import Scope
from mmcached.shm.stats.page import StatsPage, StatsPageWriter
from mmcached.wire.config import ServiceConfig
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.paths import RunDir
from mmcached.wire.stats import RoleName, SecondLevelStats
from tests.second_level.servers import EPOCH, Server, find_program, short_folder

NOBODY = "redis://user:hunter2@127.0.0.1:1"


def look(run_dir: Path, url: str, limits: LimitsConfig | None = None) -> Finding:
    found = second_level(CheckedHost(run_dir, ServiceConfig(store_l2=url, limits=limits or LimitsConfig())))
    assert "hunter2" not in found.what + found.fix
    assert bool(found.fix) == (found.level != "ok")
    return found


def test_none_is_no_fault(run_dir: Path) -> None:
    assert look(run_dir, "").level == "ok"


def test_a_url_that_cannot_be_is_a_problem(run_dir: Path) -> None:
    assert look(run_dir, "redos://user:hunter2@host").level == "problem"


def test_a_server_that_is_not_there_costs_what_it_would_have_had(run_dir: Path) -> None:
    found = look(run_dir, NOBODY)
    assert (found.level, "redis://user:***@127.0.0.1:1: " in found.what) == ("warning", True)


def test_a_real_server_is_tried_and_its_ways_when_full_are_known(run_dir: Path) -> None:
    program = find_program("redis-server")
    if program is None:
        pytest.skip("redis-server is not on this machine: a package of Debian")
    with short_folder() as folder, Server(program, folder) as server, server.client() as client:
        assert "no maxmemory" in look(run_dir, server.url).what
        client.config_set("maxmemory", "64mb")
        client.config_set("maxmemory-policy", "noeviction")
        assert "noeviction" in look(run_dir, server.url).what
        client.config_set("maxmemory-policy", "allkeys-lru")
        found = look(run_dir, server.url)
        assert (found.level, "128 KiB put in" in found.what) == ("ok", True)
        directory = RunDir(run_dir)
        with StatsPage.create(directory.stats_page) as page, StatsPageWriter(page.path, RoleName("second_level")) as of:
            of.publish(SecondLevelStats(circuit_open=1))
            found = look(run_dir, server.url)
        assert (found.level, "circuit open" in found.what) == ("warning", True)
        client.acl_setuser(
            "me", enabled=True, passwords=["+hunter2"], keys=["*"], commands=["+get", "+getrange", "+set"]
        )
        found = look(run_dir, f"unix://me:hunter2@{server.socket}")
        assert (found.level, "128 KiB" in found.what) == ("ok", True), (
            "who may not ask for its memory is not told of it"
        )
        client.acl_setuser("me", enabled=True, commands=["-set"])
        found = look(run_dir, f"unix://me:hunter2@{server.socket}")
        assert (found.level, "user and password" in found.fix) == ("warning", True)


def test_what_is_wrong_is_told_apart(run_dir: Path) -> None:
    program = find_program("redis-server")
    if program is None:
        pytest.skip("redis-server is not on this machine: a package of Debian")
    with short_folder() as folder, Server(program, folder) as server, server.client() as client:
        client.config_set("maxmemory", "1")
        found = look(run_dir, server.url)
        assert ("maxmemory" in found.fix, "password" in found.fix) == (True, False)
        client.config_set("maxmemory", "64mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.set("mmcached:epoch", "1")
        found = look(run_dir, server.url)
        assert (found.level, "version 1" in found.what, "mmcached:epoch" in found.fix) == ("warning", True, True)
        client.set(EPOCH, b"%019d" % 8)
        EpochNote(RunDir(run_dir).second_level_epoch).write(Scope(7))
        found = look(run_dir, server.url)
        assert ("another host was flushed" in found.what, "mmcached flush" in found.fix) == (True, True)
        client.config_set("requirepass", "secret")
        assert "user and password" in look(run_dir, server.url).fix
    assert "address" in look(run_dir, server.url).fix
