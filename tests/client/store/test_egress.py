"""Large puts go through a ring of the client's own, and through the socket wherever that cannot be; both clients."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mmcached.client.store.egress import MIN_BYTES, MIN_RING_BYTES, Egress, EgressRing

from mmcached.client import Client
from mmcached.client.store import egress
from mmcached.shm import EncodedRecord, encode
from mmcached.shm.segment.layout import chunk_bytes
from mmcached.shm.segment.mapped import SHM_DIR
from mmcached.shm.segment.segment import WriterSegment
from mmcached.wire.errors import SegmentError
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages.frontend import ClientHello, PutRecord, RegisterEgressRing
from tests.client.blocking import Make
from tests.client.fork_child import in_child
from tests.client.records import is_equal, numbers
from tests.client.services import StoreService
from tests.integration.processes import eventually

LARGE = 1 << 20
ME = "0123456789abcdef" * 2


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a ring again without waiting; nothing here depends on when."""
    monkeypatch.setattr(egress, "RETRY_S", 0.0)


def puts(service: StoreService) -> list[str]:
    """Return how each put has come."""
    found = [message for message in service.received if isinstance(message, PutRecord)]
    return ["inline" if message.place is None else "ring" for message in found]


def rings(service: StoreService) -> tuple[int, int]:
    """Return the rings that the service has mapped, and their bytes."""
    found: list[tuple[int, int]] = []
    service.call(lambda: found.append((len(service.desk.egress), service.desk.egress.num_bytes)))
    return found[0]


def ring_ids(service: StoreService) -> list[str]:
    return [message.ring.ring_id for message in service.received if isinstance(message, RegisterEgressRing)]


def targets() -> Iterator[str]:
    """Yield what the descriptors of this process lead to."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it was that of the listing
            yield os.readlink(f"/proc/self/fd/{name}")


def shm_names() -> set[str]:
    return set(os.listdir(SHM_DIR))


def test_a_large_record_goes_through_the_ring_and_a_small_one_inline(service: StoreService, client: Any) -> None:
    before = shm_names()
    for index in range(8):
        assert client.put(f"large {index}", numbers(index, LARGE))
    assert client.put("small", numbers(9, MIN_BYTES // 2))
    nested = {"a": [np.arange(5), {"b": np.zeros((300, 400))}], "c": "text", "d": np.empty((0, 3))}
    assert client.put("nested", nested)
    assert puts(service) == ["ring"] * 8 + ["inline", "ring"]
    for index in range(8):
        assert is_equal(client.get(f"large {index}", tensors="numpy").record, numbers(index, LARGE))
    assert is_equal(client.get("nested", tensors="numpy").record, nested)
    assert service.count(RegisterEgressRing) == 1
    assert rings(service) == (1, MIN_RING_BYTES)
    assert shm_names() == before, "the ring's names are gone as soon as it is mapped"
    counters = client.store_counters()
    assert (counters.puts, counters.stored, counters.causes) == (10, 10, {})


def test_what_is_computed_goes_through_the_ring_too(service: StoreService, client: Any) -> None:
    assert is_equal(client.get_or_compute("k", partial(numbers, 1, LARGE)), numbers(1, LARGE))
    assert is_equal(client.get("k", tensors="numpy").record, numbers(1, LARGE))
    assert puts(service) == ["ring"]


def test_a_record_that_is_larger_than_the_ring_gets_a_larger_one(service: StoreService, client: Any) -> None:
    for index, nbytes in enumerate((LARGE, 3 * LARGE, 6 * LARGE, LARGE)):
        assert client.put(f"k{index}", numbers(index, nbytes))
    assert is_equal(client.get("k2", tensors="numpy").record, numbers(2, 6 * LARGE))
    assert puts(service) == ["ring"] * 4
    assert rings(service) == (1, 16 * LARGE)


def test_a_chunk_is_used_again_only_after_its_put_was_answered(service: StoreService, client: Any) -> None:
    """The call has ended at its deadline, and the frontend has not read the record yet."""
    assert client.put("first", numbers(0, LARGE))
    service.hold = (PutRecord,)
    for index in range(3):
        assert not client.put(f"late {index}", numbers(1 + index, LARGE), timeout_s=0.05)
    service.hold = ()
    for index in range(4):
        assert client.put(f"between {index}", numbers(10 + index, LARGE))
    service.release()
    for index in range(3):
        hit = client.get(f"late {index}", tensors="numpy")
        assert is_equal(hit.record, numbers(1 + index, LARGE))
    kinds = puts(service)
    assert kinds[:4] == ["ring"] * 4
    assert "inline" in kinds, "a full ring keeps nobody waiting"
    assert client.put("after", numbers(20, LARGE))
    assert puts(service)[-1] == "ring", "the late answers have freed their chunks"


def test_without_room_in_dev_shm_it_goes_inline_and_is_said_once(
    service: StoreService, client: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> WriterSegment:
        raise SegmentError("no room for a test")

    with monkeypatch.context() as patch:
        patch.setattr(WriterSegment, "create", refuse)
        for index in range(3):
            assert client.put(f"k{index}", numbers(index, LARGE))
    assert is_equal(client.get("k2", tensors="numpy").record, numbers(2, LARGE))
    assert [record.message for record in caplog.records if "socket" in record.message] == [
        "large puts go through the socket: no room for a test"
    ]
    assert client.put("later", numbers(4, LARGE))
    assert puts(service) == ["inline", "inline", "inline", "ring"]


def test_where_no_ring_is_taken_it_goes_inline(make: Make, run_dir: Path) -> None:
    with (
        StoreService(run_dir, limits=LimitsConfig(max_egress_rings=0)) as service,
        make(run_dir, fail_open=False) as client,
    ):
        assert client.put("k", numbers(1, LARGE))
        assert puts(service) == ["inline"]
        assert service.count(RegisterEgressRing) == 0


def test_one_ring_too_many_is_refused_and_costs_nothing(make: Make, run_dir: Path) -> None:
    with StoreService(run_dir, limits=LimitsConfig(max_egress_rings=1)) as service:
        with make(run_dir) as first, make(run_dir, fail_open=False) as second:
            assert first.put("a", numbers(1, LARGE))
            before = shm_names()
            assert second.put("b", numbers(2, LARGE))
            assert shm_names() == before
            assert puts(service) == ["ring", "inline"]
        eventually(lambda: rings(service), lambda found: found == (0, 0), "the ring of a client that has said goodbye")


def test_a_frontend_that_has_let_go_of_the_ring_gets_the_record_inline(service: StoreService, client: Any) -> None:
    assert client.put("a", numbers(1, LARGE))
    service.call(service.desk.egress.close)
    assert client.put("b", numbers(2, LARGE))
    assert client.put("c", numbers(3, LARGE))
    assert puts(service) == ["ring", "ring", "inline", "ring"]
    assert is_equal(client.get("b", tensors="numpy").record, numbers(2, LARGE))
    assert client.store_counters().causes == {}


def test_a_lost_connection_ends_the_ring_and_the_next_put_makes_another(service: StoreService, client: Any) -> None:
    assert client.put("a", numbers(1, LARGE))
    service.call(lambda: service.listener.disconnect(next(iter(service.peers.values()))))
    eventually(lambda: (client.drop("x"), service.count(ClientHello))[1], lambda count: count > 1, "another greeting")
    assert rings(service) == (0, 0), "what lies in a ring of a former connection is lost"
    assert client.put("b", numbers(2, LARGE))
    assert client.put("c", numbers(3, LARGE))
    assert rings(service) == (1, MIN_RING_BYTES)
    assert puts(service)[-1] == "ring"


def test_after_a_restart_it_goes_on(make: Make, run_dir: Path) -> None:
    with make(run_dir) as client:
        for _ in range(2):
            with StoreService(run_dir) as service:
                eventually(lambda: client.put("k", numbers(1, LARGE)), bool, "stored")
                assert is_equal(client.get("k", tensors="numpy").record, numbers(1, LARGE))
                assert puts(service)[-1] == "ring"


def test_threads_share_the_ring(service: StoreService, run_dir: Path) -> None:
    with Client(run_dir, fail_open=False) as client:

        def put(thread: int) -> None:
            for index in range(6):
                assert client.put(f"{thread} {index}", numbers(100 * thread + index, LARGE // 4))

        threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for number in range(4):
            for index in range(6):
                hit = client.get(f"{number} {index}", tensors="numpy")
                assert hit is not None
                assert is_equal(hit.record, numbers(100 * number + index, LARGE // 4))
    assert len(puts(service)) == 24
    assert "ring" in puts(service)


def test_a_client_that_is_dropped_or_forked_leaves_nothing(service: StoreService, run_dir: Path) -> None:
    with Client(run_dir, fail_open=False) as client:
        assert client.put("parent", numbers(1, LARGE))

        def child() -> Any:
            inherited = sum(ring_ids(service)[0] in target for target in targets())
            is_stored = bool(client.put("child", numbers(2, LARGE)))
            client.close()
            return [inherited, is_stored]

        assert in_child(child) == [0, True]
        assert client.put("parent again", numbers(3, LARGE))
        for key, seed in (("parent", 1), ("child", 2), ("parent again", 3)):
            hit = client.get(key, tensors="numpy")
            assert hit is not None
            assert is_equal(hit.record, numbers(seed, LARGE))
        assert puts(service) == ["ring"] * 3
        assert len(set(ring_ids(service))) == 2


# ---- the ring by itself


@pytest.fixture
def ring() -> Iterator[EgressRing]:
    with EgressRing(ME, MIN_RING_BYTES) as made:
        yield made


def test_a_place_is_not_given_twice_until_it_is_freed(ring: EgressRing) -> None:
    record = encode(numbers(1, LARGE))
    places = [ring.lay(number, record) for number in range(5)]
    assert [place is not None for place in places] == [True, True, True, False, False]
    assert len({place.offset for place in places if place is not None}) == 3
    for number in (1, 4, 99):
        ring.free(number)
    again = ring.lay(5, record)
    assert again is not None
    assert again.offset == places[1].offset  # type: ignore[union-attr]
    assert ring.lay(6, record) is None


def test_what_was_freed_is_used_first(ring: EgressRing) -> None:
    record = encode(numbers(1, LARGE))
    first, second = ring.lay(1, record), ring.lay(2, record)
    assert first is not None
    assert second is not None
    for number in range(3, 9):
        ring.free(1 if number == 3 else number - 1)
        assert ring.lay(number, record) == first, "it is in the caches still"


def test_a_signal_handler_that_comes_while_room_is_taken_goes_inline(
    ring: EgressRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = encode(numbers(1, LARGE))
    inner: list[object] = []

    def interrupted(nbytes: int) -> int:
        inner.append(ring.lay(2, record))
        ring.free(1)
        return chunk_bytes(nbytes)

    monkeypatch.setattr(egress, "chunk_bytes", interrupted)
    assert ring.lay(1, record) is not None
    assert inner == [None]


@pytest.mark.parametrize(("target", "name"), [(egress, "chunk_bytes"), (EncodedRecord, "write_into")])
def test_an_interrupt_costs_nothing(
    ring: EgressRing, monkeypatch: pytest.MonkeyPatch, target: object, name: str
) -> None:
    record = encode(numbers(1, LARGE))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for number in range(4):
        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(target, name, interrupt)
            ring.lay(number, record)
    assert ring.lay(9, record) is not None


def test_a_ring_that_is_closed_while_it_is_filled_has_no_place(
    ring: EgressRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = encode(numbers(1, LARGE))
    write = EncodedRecord.write_into

    def write_and_close(self: EncodedRecord, buffer: Any) -> None:
        write(self, buffer)
        ring.close()

    monkeypatch.setattr(EncodedRecord, "write_into", write_and_close)
    assert ring.lay(1, record) is None
    assert ring.lay(2, record) is None


def test_one_makes_a_ring_and_nobody_waits_for_it() -> None:
    egress_of_client = Egress()
    made = egress_of_client.new_ring(ME, LARGE, 64 * LARGE)
    assert made is not None
    assert egress_of_client.new_ring(ME, LARGE, 64 * LARGE) is None, "it is being registered"
    assert egress_of_client.lay(1, encode(numbers(1, LARGE))) is None
    egress_of_client.close()
    egress_of_client.open(made)
    assert made.is_over, "the client was closed meanwhile"
    assert egress_of_client.new_ring(ME, LARGE, 64 * LARGE) is None


def test_a_record_that_fits_in_no_ring_gets_none() -> None:
    egress_of_client = Egress()
    assert egress_of_client.new_ring(ME, LARGE, LARGE - 64) is None
    assert egress_of_client.new_ring(ME, LARGE, 0) is None
    largest = egress_of_client.new_ring(ME, 64 * LARGE, 64 * LARGE)
    assert largest is not None
    egress_of_client.refuse(largest, "enough")
    assert egress_of_client.why_inline == "enough"


def test_without_close_the_ring_goes_with_its_last_reference() -> None:
    before = shm_names()
    made = EgressRing(ME, MIN_RING_BYTES)
    assert shm_names() != before
    del made
    assert shm_names() == before
