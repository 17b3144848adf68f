"""What the second level asks of Mooncake, with a double of its client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from mmcached.second_level.backend import Backend, BackendError, BackendLate, BackendRefused, HostApart, Value
from mmcached.second_level.mooncake.backend import MAX_CALLS, MooncakeBackend
from mmcached.second_level.mooncake.client import SCRATCH_BYTES, MooncakeClient
from mmcached.second_level.records import HEAD_BYTES, MAX_VALUE_BYTES, Found, Missed
from mmcached.second_level.shared_records import SharedRecords
from tests.clock import Clock
from tests.second_level.mooncake.epochs import begin_epoch
from tests.second_level.mooncake.memory_store import MemoryStore
from tests.second_level.servers import EPOCH

NAME, OTHER = "ab" * 32, "cd" * 32
TTL_S, LONG_S, SOON_S = 10.0, 30.0, 0.05
NO_ROOM, OTHER_WRITES, NOT_BROUGHT, UNREACHED, SILENT = -200, -601, -800, -900, -901


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    store = MemoryStore()
    yield store
    store.goes_on.set()


@pytest.fixture
def make_backend(store: MemoryStore) -> Iterator[Callable[..., MooncakeBackend]]:
    made: list[MooncakeBackend] = []

    def make(wall_clock: Callable[[], float] = time.time, namespace: str = "") -> MooncakeBackend:
        start = partial(MooncakeClient, store, "pinned", lambda: None)
        made.append(MooncakeBackend(start, namespace=namespace, wall_clock=wall_clock))
        return made[-1]

    yield make
    store.goes_on.set()
    for backend in made:
        backend.close()


@pytest.fixture
def backend(make_backend: Callable[..., MooncakeBackend]) -> Backend:
    return make_backend()


def within(seconds: float) -> float:
    return time.monotonic() + seconds


def put(backend: Backend, name: str, value: bytes) -> None:
    backend.put(name, [value[:1], value[1:]], ttl_s=TTL_S, deadline=within(LONG_S))


def get(backend: Backend, *names: str) -> list[bytes | None]:
    values = backend.get_many(names, deadline=within(LONG_S))[1]
    return [bytes(value) if isinstance(value, Value) else None for value in values]


def test_what_is_put_is_read_and_replaced(backend: Backend) -> None:
    epoch = begin_epoch(backend)
    put(backend, NAME, b"one")
    put(backend, NAME, b"another")
    assert get(backend, OTHER, NAME, OTHER) == [None, b"another", None]
    assert backend.get_many([], deadline=within(LONG_S)) == (epoch, [])
    assert backend.get_heads([OTHER, NAME], 4, deadline=within(LONG_S)) == (epoch, [None, b"anot"])


def test_of_many_values_the_heads_are_read_and_of_a_short_one_none(backend: Backend) -> None:
    begin_epoch(backend)
    names = [f"{number:064x}" for number in range(SCRATCH_BYTES // HEAD_BYTES + 3)]
    for number, name in enumerate(names):
        put(backend, name, b"%d" % number * HEAD_BYTES)
    put(backend, NAME, b"short")
    heads = backend.get_heads([NAME, *names], HEAD_BYTES, deadline=within(LONG_S))[1]
    assert heads == [None, *((b"%d" % number * HEAD_BYTES)[:HEAD_BYTES] for number in range(len(names)))]


def test_without_an_epoch_there_are_values_and_no_records(
    make_backend: Callable[..., MooncakeBackend], store: MemoryStore
) -> None:
    backend = make_backend()
    records = SharedRecords(backend, max_bytes=1 << 20, ttl_s=TTL_S)
    records.save(NAME, [b"record"], deadline=within(LONG_S))
    del store.values[EPOCH]
    epoch, (value,) = backend.get_many([NAME], deadline=within(LONG_S))
    assert (epoch, value is None) == (0, False)
    epoch, (head,) = backend.get_heads([NAME], 4, deadline=within(LONG_S))
    assert (epoch, head is None) == (0, False)
    (found,) = records.get_many([NAME], deadline=within(LONG_S))
    assert isinstance(found, Found), "the epoch is put back"


def test_the_epoch_is_pinned_and_only_rises(backend: Backend, store: MemoryStore) -> None:
    epoch = begin_epoch(backend)
    assert backend.raise_epoch(epoch - 1, over=epoch - 1, deadline=within(LONG_S)) == epoch
    assert backend.raise_epoch(epoch + 1, over=epoch, deadline=within(LONG_S)) == epoch
    assert backend.get_many([], deadline=within(LONG_S)) == (epoch + 1, [])
    assert store.pinned == {EPOCH}


@pytest.mark.parametrize("flaw", ["lost", "torn", "short"])
def test_an_epoch_that_cannot_be_read_is_no_epoch_at_all(backend: Backend, store: MemoryStore, flaw: str) -> None:
    begin_epoch(backend)
    if flaw == "lost":
        store.lost.add(EPOCH)
    old = store.values[EPOCH]
    store.values[EPOCH] = {"lost": old, "torn": bytes([~old[0] & 255]) + old[1:], "short": old[:8]}[flaw]
    with pytest.raises(BackendError, match="epoch"):
        backend.get_many([NAME], deadline=within(LONG_S))


def test_a_value_that_is_lost_or_too_large_is_missing(backend: Backend, store: MemoryStore) -> None:
    begin_epoch(backend)
    put(backend, NAME, b"held by a process that has died")
    put(backend, OTHER, bytes(MAX_VALUE_BYTES + 1))
    store.lost.add(f"mmcached:3:record:{NAME}")
    assert get(backend, NAME, OTHER) == [None, None]


@pytest.mark.parametrize(("status", "why"), [(NO_ROOM, "no room"), (OTHER_WRITES, "another client")])
def test_where_nothing_can_be_written_every_host_may_compute(
    backend: Backend, store: MemoryStore, status: int, why: str
) -> None:
    store.status = status
    with pytest.raises(BackendRefused, match=why):
        put(backend, NAME, b"value")
    assert backend.claim(NAME, ttl_s=TTL_S, deadline=within(LONG_S))


@pytest.mark.parametrize("status", [UNREACHED, SILENT])
def test_a_master_that_is_not_reached_is_an_error_and_no_miss(
    backend: Backend, store: MemoryStore, status: int
) -> None:
    store.status = status
    for ask in (
        lambda: backend.get_many([NAME], deadline=within(LONG_S)),
        lambda: backend.get_heads([NAME], 4, deadline=within(LONG_S)),
        lambda: put(backend, NAME, b"value"),
        lambda: backend.claim(NAME, ttl_s=TTL_S, deadline=within(LONG_S)),
        lambda: begin_epoch(backend),
    ):
        with pytest.raises(BackendError, match=f"not reached .error {status}") as failed:
            ask()
        assert not isinstance(failed.value, BackendRefused)


def test_a_value_that_was_not_brought_there_is_an_error(backend: Backend, store: MemoryStore) -> None:
    store.status = NOT_BROUGHT
    with pytest.raises(BackendError, match="-800"):
        put(backend, NAME, b"value")


def test_one_host_claims_until_it_drops_it_or_its_time_is_over(make_backend: Callable[..., MooncakeBackend]) -> None:
    clock = Clock(1e9)
    one, two = make_backend(clock), make_backend(clock)

    def claim(backend: Backend) -> bool:
        return backend.claim(NAME, ttl_s=TTL_S, deadline=within(LONG_S))

    assert [claim(one), claim(one), claim(two)] == [True, True, False]
    two.drop_claim(NAME, deadline=within(LONG_S))
    assert not claim(two)
    one.drop_claim(NAME, deadline=within(LONG_S))
    one.drop_claim(NAME, deadline=within(LONG_S))
    assert [claim(two), claim(one)] == [True, False]
    clock.now += TTL_S
    assert [claim(one), claim(two)] == [True, False]


def test_a_claim_of_a_host_whose_clock_is_wrong_binds_nobody(make_backend: Callable[..., MooncakeBackend]) -> None:
    wrong, right = make_backend(Clock(2e9)), make_backend(Clock(1e9))
    assert wrong.claim(NAME, ttl_s=TTL_S, deadline=within(LONG_S))
    assert right.claim(NAME, ttl_s=TTL_S, deadline=within(LONG_S))


def test_what_is_no_claim_binds_nobody(backend: Backend, store: MemoryStore) -> None:
    store.values[f"mmcached:3:claim:{NAME}"] = b"?"
    assert backend.claim(NAME, ttl_s=TTL_S, deadline=within(LONG_S))


def test_calls_end_when_mooncake_does_not(make_backend: Callable[..., MooncakeBackend], store: MemoryStore) -> None:
    backend = make_backend()
    put(backend, NAME, b"value")
    store.goes_on.clear()
    for _ in range(MAX_CALLS):
        with pytest.raises(BackendLate):
            backend.get_many([NAME], deadline=within(SOON_S))
    with pytest.raises(BackendError, match=f"all {MAX_CALLS} threads"):
        backend.get_many([NAME], deadline=within(LONG_S))
    backend.close()
    assert not store.is_closed
    with pytest.raises(BackendError, match="closed"):
        backend.get_many([NAME], deadline=within(LONG_S))
    backend.close()


def test_the_pieces_of_a_value_are_the_callers_again_when_his_call_has_ended(
    backend: Backend, store: MemoryStore
) -> None:
    store.goes_on.clear()
    piece = bytearray(b"value")
    with pytest.raises(BackendLate):
        backend.put(NAME, [memoryview(piece)], ttl_s=TTL_S, deadline=within(SOON_S))
    piece.clear()


def test_a_client_that_does_not_start_is_started_again(store: MemoryStore) -> None:
    errors = [BackendError("Mooncake's master is not reached"), OSError("anything")]

    def start() -> MooncakeClient:
        if errors:
            raise errors.pop()
        return MooncakeClient(store, "pinned", lambda: None)

    with MooncakeBackend(start) as backend:
        for error in (OSError, BackendError):
            with pytest.raises(error):
                begin_epoch(backend)
        begin_epoch(backend)
    assert store.is_closed


def test_a_client_whose_master_is_silent_is_not_closed(store: MemoryStore) -> None:
    def reach() -> None:
        raise BackendError("Mooncake's master is not reached")

    with MooncakeBackend(lambda: MooncakeClient(store, "pinned", reach)) as backend:
        begin_epoch(backend)
    assert not store.is_closed


def test_records_are_found_in_their_epoch(make_backend: Callable[..., MooncakeBackend]) -> None:
    one, two = (SharedRecords(make_backend(), max_bytes=1 << 20, ttl_s=TTL_S) for _ in range(2))
    assert one.save(NAME, [b"rec", b"ord"], deadline=within(LONG_S)) == "kept"
    assert two.save(NAME, [b"record"], deadline=within(LONG_S)) == "there"
    (found,) = two.get_many([NAME], deadline=within(LONG_S))
    assert isinstance(found, Found)
    assert b"".join(found.pieces) == b"record"
    one.flush(deadline=within(LONG_S))
    with pytest.raises(HostApart):
        two.get_many([NAME, OTHER], deadline=within(LONG_S))
    two.flush(deadline=within(LONG_S))
    assert two.epoch == one.epoch
    assert two.get_many([NAME, OTHER], deadline=within(LONG_S)) == [Missed("epoch"), Missed("absent")]


def test_two_fleets_on_one_store_see_nothing_of_each_other(make_backend: Callable[..., MooncakeBackend]) -> None:
    fleets = [make_backend(namespace=name) for name in ("", "blue", "green")]
    for number, backend in enumerate(fleets):
        assert backend.get_many([NAME], deadline=within(LONG_S)) == (0, [None])
        backend.raise_epoch(number + 1, over=number, deadline=within(LONG_S))
        put(backend, NAME, b"value %d" % number)
        assert backend.claim(NAME, ttl_s=LONG_S, deadline=within(LONG_S))
    for number, backend in enumerate(fleets):
        assert get(backend, NAME) == [b"value %d" % number]
        assert backend.get_many([], deadline=within(LONG_S))[0] == number + 1
