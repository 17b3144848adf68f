"""Gives tests of the second level a server; each runs with those of Redis and Valkey that the machine has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from mmcached.second_level.shared_records import SharedRecords
from mmcached.second_level.urls import make_backend
from tests.second_level.servers import PROGRAMS, Server, find_program, short_folder

OUTER_S = 20.0
"""Until a call that nothing disturbs; no test waits for it to pass."""
MAX_BYTES = 256 << 20


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
