"""Gives tests of the second level a server; each runs with those of Redis and Valkey that the machine has."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from mmcached.second_level.shared_records import SharedRecords
from mmcached.second_level.urls import make_backend
from scripts.tested_with import note
from tests.second_level.servers import PROGRAMS, Server, find_program, short_folder
from tests.whole_run import BEGAN_AT, passed_folder

OUTER_S = 20.0
"""Until a call that nothing disturbs; no test waits for it to pass."""
MAX_BYTES = 256 << 20


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Note a run of the whole folder in which every test passed, for each server that it has started."""
    passed = passed_folder(session, exitstatus)
    if passed is None or passed[0].name != "second_level":
        return
    for name in PROGRAMS:
        program, num_passed = find_program(name), sum(name in test for test in passed[1])
        if program is not None and num_passed:
            said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
            (version,) = re.findall(r"\bv=(\S+)", said)
            note(name.removesuffix("-server"), version=version, num_passed=num_passed, began_at=BEGAN_AT)


@pytest.fixture(scope="package", params=[name for name in PROGRAMS if find_program(name)] or PROGRAMS[:1])
def program(request: pytest.FixtureRequest) -> str:
    found = find_program(request.param)
    if found is None:
        pytest.skip(f"{request.param} is not on this machine: a package of Debian")
    return found


@pytest.fixture(scope="package")
def shared_server(program: str) -> Iterator[Server]:
    with short_folder() as folder, Server(program, folder) as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Server:
    """Return a server with nothing in it, for tests that let it live."""
    with shared_server.client() as client:
        client.flushall()
    return shared_server


@pytest.fixture
def own_server(program: str) -> Iterator[Server]:
    """Return a server for a test that kills it, or gives it other settings."""
    with short_folder() as folder, Server(program, folder) as server:
        yield server


def in_time() -> float:
    return time.monotonic() + OUTER_S


MakeRecords = Callable[[str], SharedRecords]


@pytest.fixture
def make_records() -> Iterator[MakeRecords]:
    """Return what makes `SharedRecords` of a URL; they are closed when the test ends."""
    made: list[SharedRecords] = []

    def make(url: str) -> SharedRecords:
        made.append(SharedRecords(make_backend(url), max_bytes=MAX_BYTES, ttl_s=60.0))
        return made[-1]

    yield make
    for records in made:
        records.close()
