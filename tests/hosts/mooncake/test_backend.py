"""The second level with a real master: what is put is found, and what happens to the master and its memory."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mmcached.cli.doctor.finding import CheckedHost
from mmcached.cli.doctor.second_level import second_level
from mmcached.second_level.backend import BackendError, BackendLate, BackendRefused
from mmcached.second_level.mooncake.backend import MAX_CALLS, MooncakeBackend
from mmcached.second_level.mooncake.place import read_place
from mmcached.second_level.mooncake.start import start
from mmcached.second_level.records import MAX_VALUE_BYTES
from mmcached.wire.config import ServiceConfig
from mmcached.wire.limits import LimitsConfig
from tests.hosts.mooncake.conftest import LONG_S, MakeBackend, await_rest, await_room, within
from tests.hosts.mooncake.stores import Lender, Master
from tests.second_level.mooncake.epochs import begin_epoch

TTL_S, SOON_S = 60.0, 0.05
SLACK_S = 1.0
"""How much later than its deadline a call may end on a busy machine."""


def put(backend: MooncakeBackend, name: str, value: bytes) -> None:
    backend.put(name, [value[:10], value[10:]], ttl_s=TTL_S, deadline=within(LONG_S))


def get(backend: MooncakeBackend, *names: str) -> list[bytes | None]:
    values = backend.get_many(names, deadline=within(LONG_S))[1]
    return [None if value is None else bytes(value) for value in values]


def name() -> str:
    return os.urandom(32).hex()


def test_what_one_puts_another_finds(shared_master: Master, make_backend: MakeBackend) -> None:
    one, two = make_backend(shared_master.url), make_backend(shared_master.url)
    epoch = begin_epoch(one)
    small, large, missing = name(), name(), name()
    values = {small: os.urandom(100), large: os.urandom(MAX_VALUE_BYTES)}
    for key, value in values.items():
        put(one, key, value)
    assert get(two, large, missing, small) == [values[large], None, values[small]]
    heads = two.get_heads([small, missing, large], 64, deadline=within(LONG_S))
    assert heads == (epoch, [values[small][:64], None, values[large][:64]])
    for value in (os.urandom(100), os.urandom(5000)):
        put(two, small, value)
        assert get(one, small) == [value]


def test_a_new_epoch_is_seen_by_all(shared_master: Master, make_backend: MakeBackend) -> None:
    one, two = make_backend(shared_master.url), make_backend(shared_master.url)
    for writer, reader in ((one, two), (two, one), (one, two)):
        epoch = begin_epoch(writer)
        assert reader.get_many([], deadline=within(LONG_S)) == (epoch, [])


def test_an_epoch_that_is_read_while_it_is_written_is_one_that_was(
    shared_master: Master, make_backend: MakeBackend
) -> None:
    one, two = make_backend(shared_master.url), make_backend(shared_master.url)
    begun = {begin_epoch(one)}
    is_over = threading.Event()

    def begin() -> None:
        while not is_over.is_set():
            begun.add(begin_epoch(one))

    with ThreadPoolExecutor(1) as writers:
        writing = writers.submit(begin)
        seen = set()
        for _ in range(500):
            with contextlib.suppress(BackendError):  # it is being written
                seen.add(two.get_many([], deadline=within(LONG_S))[0])
        is_over.set()
        writing.result()
    assert seen
    assert seen <= begun | {0}


def test_of_two_that_claim_at_once_one_does_and_whoever_is_second_knows(
    shared_master: Master, make_backend: MakeBackend
) -> None:
    backends = [make_backend(shared_master.url) for _ in range(2)]
    num_both = 0
    with ThreadPoolExecutor(2) as hosts:
        for _ in range(100):
            key, together = name(), threading.Barrier(2)

            def claim(backend: MooncakeBackend, key: str = key, together: threading.Barrier = together) -> bool:
                together.wait(LONG_S)
                return backend.claim(key, ttl_s=TTL_S, deadline=within(LONG_S))

            claimed = list(hosts.map(claim, backends))
            assert any(claimed)
            num_both += all(claimed)
            assert backends[0].claim(key, ttl_s=TTL_S, deadline=within(LONG_S)) == claimed[0] or all(claimed)
    assert num_both <= 5, "a lost claim costs an encode; this many say that claims do not work"


def test_a_claim_that_was_dropped_is_free(shared_master: Master, make_backend: MakeBackend) -> None:
    one, two = make_backend(shared_master.url), make_backend(shared_master.url)
    key = name()
    assert one.claim(key, ttl_s=TTL_S, deadline=within(LONG_S))
    assert not two.claim(key, ttl_s=TTL_S, deadline=within(LONG_S))
    one.drop_claim(key, deadline=within(LONG_S))
    assert two.claim(key, ttl_s=TTL_S, deadline=within(LONG_S))


def test_a_full_store_refuses_or_evicts_and_keeps_its_epoch(master: Master, make_backend: MakeBackend) -> None:
    backend = make_backend(master.url.replace("segment_mb=0", "segment_mb=64"))
    epoch = begin_epoch(backend)
    names, refusals = [name() for _ in range(40)], 0
    value = os.urandom(8 << 20)
    for key in names:
        try:
            put(backend, key, value)
        except BackendRefused:
            refusals += 1
    assert refusals
    there, values = backend.get_many(names, deadline=within(LONG_S))
    assert there == epoch
    assert {None} < {None if found is None else bytes(found) for found in values} == {None, value}


def test_memory_of_a_process_that_was_killed_is_lost_and_the_epoch_is_not(
    master: Master, make_backend: MakeBackend
) -> None:
    backend = make_backend(master.url)
    names = [name() for _ in range(16)]
    with Lender(master) as one, Lender(master) as two:
        await_two_places(master)
        epoch = begin_epoch(backend)
        for key in names:
            put(backend, key, key.encode() * 1000)
        two.kill()
        there, values = look(backend, names)
        assert there == epoch
        assert all(value in (None, key.encode() * 1000) for key, value in zip(names, values, strict=True))
        assert None in values
        one.kill()
        assert look(backend, names) == (0, [None] * len(names))
        one.start()
        await_room(backend)


def look(backend: MooncakeBackend, names: list[str]) -> tuple[int, list[bytes | None]]:
    """Return epoch and values, as soon as the master knows what is lost: until then the epoch may not be read."""
    deadline = within(LONG_S)
    while True:
        with contextlib.suppress(BackendError):
            epoch, values = backend.get_many(names, deadline=within(LONG_S))
            return epoch, [None if value is None else bytes(value) for value in values]
        assert time.monotonic() < deadline
        time.sleep(0.1)


def await_two_places(master: Master) -> None:
    """Wait until two processes have lent their memory: what is to lie in two places does."""
    with start(read_place(master.url)) as client:
        deadline = within(LONG_S)
        for number in itertools.count():
            with contextlib.suppress(BackendError):
                client.write(f"probe {number}", b"?", is_pinned=True)
                if len(client.store.get_replica_desc(f"probe {number}")) == 2:  # type: ignore[attr-defined]
                    return
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_master_that_stands_still_holds_nobody_up(master: Master, make_backend: MakeBackend) -> None:
    backend = make_backend(master.url.replace("segment_mb=0", "segment_mb=64"))
    epoch = begin_epoch(backend)
    key = name()
    put(backend, key, b"value" * 10)
    master.stop()
    try:
        for number in range(3 * MAX_CALLS):
            before = time.monotonic()
            with pytest.raises(BackendLate if number < MAX_CALLS else BackendError):
                backend.get_many([key], deadline=within(SOON_S))
            assert time.monotonic() - before < SOON_S + SLACK_S
    finally:
        master.go_on()
    await_rest(backend)
    assert backend.get_many([key], deadline=within(LONG_S))[0] in (epoch, 0)


def test_a_client_is_not_started_with_a_master_that_stands_still(master: Master, make_backend: MakeBackend) -> None:
    backend = make_backend(master.url)
    master.stop()
    with pytest.raises(BackendError, match="is not reached: timed out"):
        backend.get_many([], deadline=within(LONG_S))
    master.go_on()
    assert backend.get_many([], deadline=within(LONG_S)) == (0, [])


def test_a_master_that_died_is_an_error_and_its_successor_knows_nothing(
    master: Master, make_backend: MakeBackend
) -> None:
    backend = make_backend(master.url.replace("segment_mb=0", "segment_mb=64"))
    old = begin_epoch(backend)
    key = name()
    put(backend, key, b"value" * 10)
    master.kill()
    for _ in range(3 * MAX_CALLS):
        before = time.monotonic()
        with pytest.raises(BackendError):
            backend.get_many([key], deadline=within(SOON_S))
        assert time.monotonic() - before < SOON_S + SLACK_S
    master.start()
    await_rest(backend)
    await_room(backend)
    epoch, values = backend.get_many([key], deadline=within(LONG_S))
    assert epoch not in (0, old)
    assert values == [None]
    put(backend, key, b"again")
    assert get(backend, key) == [b"again"]


def test_doctor_tries_it(master: Master, run_dir: Path) -> None:
    for lent, level, what in ((64, "ok", "128 KiB put in"), (0, "warning", "no room: see segment_mb")):
        url = master.url.replace("segment_mb=0", f"segment_mb={lent}")
        found = second_level(
            CheckedHost(run_dir, ServiceConfig(store_l2=url, limits=LimitsConfig(l2_timeout_ms=20_000)))
        )
        assert (found.level, what in found.what) == (level, True)


def test_nothing_that_lends_memory_is_a_refusal(master: Master, make_backend: MakeBackend) -> None:
    backend = make_backend(master.url)
    with pytest.raises(BackendRefused, match="no room: see segment_mb"):
        begin_epoch(backend)
