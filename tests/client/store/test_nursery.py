"""Large puts are published where the client has laid them, and go through the socket wherever that cannot be."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmcached.client import Client
from mmcached.client.store import nursery
from mmcached.client.store.nursery import ClientNursery
from mmcached.shm import EncodedRecord, encode
from mmcached.shm.ring import reader as ring_reader
from mmcached.shm.segment.layout import chunk_bytes
from mmcached.shm.segment.mapped import SHM_DIR
from mmcached.shm.segment.nursery_files import NurseryFiles
from mmcached.shm.segment.populate import Advice, Populator, advise
from mmcached.wire.handle import Handle, RingAnnouncement
from mmcached.wire.messages.frontend import ClientHello, OpenNursery, PutRecord
from mmcached.wire.messages.parts import MIN_PLACED_BYTES, Grants
from tests.client.blocking import Make
from tests.client.fork_child import in_child
from tests.client.records import is_equal, numbers
from tests.client.services import StoreService
from tests.client.store.at_once import AtOnce
from tests.frontend.integrity import check_store
from tests.integration.processes import eventually
from tests.present import present

LARGE = 1 << 20
STORE_GB = 1 / 16
BUDGET = 16 << 20


@pytest.fixture
def service(run_dir: Path) -> Iterator[StoreService]:
    with StoreService(run_dir, store_gb=STORE_GB, store_max_object_mb=8) as running:
        yield running
        running.call(lambda: check_store(running.desk))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open a nursery again without waiting; nothing here depends on when."""
    monkeypatch.setattr(nursery, "RETRY_S", 0.0)


@pytest.fixture(autouse=True)
def populated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each put find populated what was granted."""
    monkeypatch.setattr(nursery, "Populator", AtOnce)


def puts(service: StoreService) -> list[str]:
    """Return how each put has come."""
    found = [message for message in service.received if isinstance(message, PutRecord)]
    return ["frames" if message.place is None else "placed" for message in found]


def files(service: StoreService) -> list[str]:
    ring = service.desk.announcement
    assert ring is not None
    return sorted(name for name in os.listdir(SHM_DIR) if ring.ring_id in name and "nursery" in name)


def stats(service: StoreService) -> Any:
    found: list[Any] = []
    service.call(lambda: found.append(service.desk.stats()))
    return found[0]


def holds(client: Any, key: str, seed: int, nbytes: int = LARGE) -> bool:
    hit = client.get(key, tensors="numpy")
    return hit is not None and is_equal(hit.record, numbers(seed, nbytes))


def test_a_large_record_stays_where_it_was_laid_and_a_small_one_is_sent(service: StoreService, client: Any) -> None:
    for index in range(4):
        assert client.put(f"large {index}", numbers(index, LARGE))
    assert client.put("small", numbers(9, MIN_PLACED_BYTES // 2))
    nested = {"a": [np.arange(5), {"b": np.zeros((300, 400))}], "c": "text", "d": np.empty((0, 3))}
    assert client.put("nested", nested)
    assert client.get_or_compute("computed", partial(numbers, 7, LARGE)) is not None
    assert puts(service) == ["placed"] * 4 + ["frames", "placed", "placed"]
    assert all(holds(client, f"large {index}", index) for index in range(4))
    assert holds(client, "computed", 7)
    assert is_equal(client.get("nested", tensors="numpy").record, nested)
    assert service.count(OpenNursery) == len(files(service)) == 1
    assert stats(service).nursery_puts == 6
    assert client.store_counters().causes == {}


def test_others_read_it_in_place_and_its_checksum_is_judged(run_dir: Path) -> None:
    with (
        StoreService(run_dir, store_gb=STORE_GB, ring_has_checksums=True) as service,
        Client(run_dir, fail_open=False) as writer,
        Client(run_dir) as reader,
    ):
        assert writer.put("k", numbers(1, LARGE))
        hit = present(reader.get("k", view=True, tensors="numpy"))
        with hit:
            assert is_equal(hit.record, numbers(1, LARGE))
            token = present(hit.token)
            other = present(writer.open(token, view=True, tensors="numpy"))
            with other:
                assert is_equal(other.record, numbers(1, LARGE))
        del hit, other
        (name,) = files(service)
        with (SHM_DIR / name).open("r+b") as file:
            file.seek(LARGE // 2)
            file.write(b"\xff" * 64)
        assert reader.get("k") is None, "its writer has changed it"


def test_what_was_asked_for_moves_into_the_ring_and_others_only_while_that_has_room(
    service: StoreService, client: Any, run_dir: Path
) -> None:
    whole_store = int(STORE_GB * (1 << 30)) // LARGE
    num_records = whole_store + 8
    with Client(run_dir, fail_open=False) as reader:
        for index in range(num_records):
            assert client.put(f"k{index}", numbers(index, LARGE))
            assert holds(reader, "k0", 0), "before, while and after it is copied"
        lost = [index for index in range(num_records) if not holds(reader, f"k{index}", index)]
    assert len(lost) >= 8
    assert lost[0] > whole_store // 2, "those before it were copied while the ring had room"
    assert lost[-1] < num_records - BUDGET // LARGE // 2, "the newest have stayed"
    seen = stats(service)
    assert seen.promotions >= 1
    assert seen.nursery_bytes <= BUDGET
    assert puts(service).count("placed") > num_records - 8


def test_what_comes_back_after_it_has_left_its_nursery_moves_into_the_ring(service: StoreService, client: Any) -> None:
    def handles() -> dict[str, Handle]:
        found = dict[str, Handle]()
        service.call(
            lambda: found.update(
                (key, handle) for key in keys if (handle := service.desk.records.find("", key)) is not None
            )
        )
        return found

    def put(prefix: str, number: int) -> list[str]:
        made = [f"{prefix} {index}" for index in range(number)]
        assert all(client.put(key, numbers(0, LARGE)) for key in made)
        return made

    whole_store = int(STORE_GB * (1 << 30)) // LARGE
    keys = put("first", whole_store + 8)
    (left, *_) = [key for key in keys if key not in handles()]
    # It is remembered for one and a half times the whole store, which is twice the ring.
    put("other", whole_store * 5 // 4)
    assert left not in handles()
    assert client.put(left, numbers(1, LARGE))
    put("more", 4)
    assert handles()[left].nursery == 0, "it makes room first, by being copied"
    put("again", 2 * BUDGET // LARGE)
    assert holds(client, left, 1)


def test_a_view_keeps_its_place_from_being_used_again(service: StoreService, client: Any, run_dir: Path) -> None:
    with Client(run_dir, fail_open=False) as reader:
        assert client.put("held", numbers(0, LARGE))
        hit = reader.get("held", view=True, tensors="numpy")
        assert client.put("dropped", numbers(1, LARGE))
        dropped = reader.get("dropped", view=True, tensors="numpy")
        assert client.drop("dropped")
        for index in range(2 * BUDGET // LARGE):
            assert client.put(f"k{index}", numbers(index, LARGE))
        assert hit is not None
        assert dropped is not None
        assert is_equal(hit.record, numbers(0, LARGE))
        assert is_equal(dropped.record, numbers(1, LARGE))
        assert reader.get("dropped") is None
        del hit, dropped


def test_a_late_answer_brings_its_grants_and_nothing_is_overwritten(service: StoreService, client: Any) -> None:
    """The call has ended at its deadline, and the frontend has not seen the record yet."""
    assert client.put("first", numbers(0, LARGE))
    service.hold = (PutRecord,)
    for index in range(3):
        assert not client.put(f"late {index}", numbers(1 + index, LARGE), timeout_s=0.05)
    service.hold = ()
    for index in range(4):
        assert client.put(f"between {index}", numbers(10 + index, LARGE))
    service.release()
    for index in range(3):
        assert holds(client, f"late {index}", 1 + index)
    for index in range(4):
        assert holds(client, f"between {index}", 10 + index)
    assert client.put("after", numbers(20, LARGE))
    assert puts(service)[-1] == "placed", "the late answers have brought room"


def test_a_put_that_is_interrupted_while_its_answer_is_on_the_way_leaves_its_place_alone(
    service: StoreService, run_dir: Path
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with Client(run_dir, fail_open=False) as client:
        assert client.put("first", numbers(0, LARGE))
        service.hold = (PutRecord,)
        former = signal.signal(signal.SIGUSR1, interrupt)
        try:
            for index in range(3):
                seen = len(service.received)
                arrived = threading.Thread(target=interrupt_when_it_has_come, args=(service, seen))
                arrived.start()
                with pytest.raises(KeyboardInterrupt):
                    client.put(f"late {index}", numbers(1 + index, LARGE))
                arrived.join(60)
        finally:
            signal.signal(signal.SIGUSR1, former)
        service.hold = ()
        for index in range(4):
            assert client.put(f"between {index}", numbers(10 + index, LARGE))
        service.release()
        for index in range(4):
            assert holds(client, f"between {index}", 10 + index)
        assert all(holds(client, f"late {index}", 1 + index) for index in range(3))


def interrupt_when_it_has_come(service: StoreService, seen: int) -> None:
    """Send a signal once a put has come that is held."""
    eventually(
        lambda: service.received[seen:], lambda new: any(isinstance(one, PutRecord) for one in new), "the put has come"
    )
    os.kill(os.getpid(), signal.SIGUSR1)


def test_what_is_refused_is_granted_again(service: StoreService, client: Any) -> None:
    assert client.put("k", numbers(1, LARGE))
    for index in range(3 * BUDGET // LARGE):
        assert client.put("k", numbers(index, LARGE)).outcome == "exists"
    assert set(puts(service)) == {"placed"}
    assert holds(client, "k", 1)
    assert stats(service).nursery_bytes < BUDGET // 2


def test_without_memory_it_is_sent_and_said_once(
    service: StoreService, client: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, "no memory for a test")

    with monkeypatch.context() as patch:
        patch.setattr(AtOnce.__init__, "__kwdefaults__", {"advise": refuse})
        patch.setattr(nursery, "allocate", refuse)
        for index in range(3):
            assert client.put(f"k{index}", numbers(index, LARGE))
    assert holds(client, "k2", 2)
    said = [record.message for record in caplog.records if "socket" in record.message]
    assert said == ["large puts go through the socket: [Errno 12] no memory for a test"]
    assert client.put("later", numbers(4, LARGE))
    assert puts(service) == ["frames", "frames", "frames", "placed"]


def test_a_kernel_that_cannot_populate_leaves_the_faults_to_the_first_lap(
    service: StoreService, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object) -> None:
        raise OSError(errno.EINVAL, "an older kernel")

    monkeypatch.setattr(AtOnce.__init__, "__kwdefaults__", {"advise": unknown})
    for index in range(3):
        assert client.put(f"k{index}", numbers(index, LARGE))
        assert holds(client, f"k{index}", index)
    assert puts(service) == ["placed"] * 3


def test_while_the_room_is_populated_records_are_sent(
    service: StoreService, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()

    def wait(address: int, nbytes: int, advice: Advice) -> None:
        assert may_go_on.wait(60)
        advise(address, nbytes, advice)

    monkeypatch.setattr(nursery, "Populator", partial(Populator, advise=wait))
    for index in range(4):
        assert client.put(f"k{index}", numbers(index, LARGE))
    assert puts(service) == ["frames"] * 4
    may_go_on.set()

    def is_placed() -> bool:
        assert client.put("k", numbers(9, LARGE), overwrite=True)
        return puts(service)[-1] == "placed"

    eventually(is_placed, bool, "room that is populated")
    assert all(holds(client, f"k{index}", index) for index in range(4))


def test_where_there_are_no_nurseries_or_a_record_is_too_large_it_is_sent(make: Make, run_dir: Path) -> None:
    with (
        StoreService(run_dir, store_gb=STORE_GB, store_nursery_share=0.0) as service,
        make(run_dir, fail_open=False) as client,
    ):
        assert client.put("k", numbers(1, LARGE))
        assert puts(service) == ["frames"]
        assert service.count(OpenNursery) == 0
        assert files(service) == []


def test_a_record_of_more_than_a_quarter_of_the_budget_is_sent(service: StoreService, client: Any) -> None:
    assert client.put("k", numbers(1, BUDGET // 4))
    assert client.put("l", numbers(1, BUDGET // 8))
    assert puts(service) == ["frames", "placed"]
    assert holds(client, "k", 1, BUDGET // 4)


def test_a_nursery_that_the_frontend_has_drained_costs_one_message(service: StoreService, client: Any) -> None:
    assert client.put("a", numbers(1, LARGE))
    nurseries = service.desk.nurseries
    service.call(lambda: nurseries._drain(next(iter(nurseries.books))))
    assert client.put("b", numbers(2, LARGE))
    assert client.put("c", numbers(3, LARGE))
    assert puts(service) == ["placed", "placed", "frames", "placed"]
    for key, seed in (("a", 1), ("b", 2), ("c", 3)):
        assert holds(client, key, seed)
    assert len(files(service)) == 2


def test_a_lost_connection_ends_the_nursery_and_what_lies_there_stays(service: StoreService, client: Any) -> None:
    assert client.put("a", numbers(1, LARGE))
    service.call(lambda: service.listener.disconnect(next(iter(service.peers.values()))))
    eventually(lambda: (client.drop("x"), service.count(ClientHello))[1], lambda count: count > 1, "another greeting")
    assert client.put("b", numbers(2, LARGE))
    assert puts(service) == ["placed", "placed"]
    assert holds(client, "a", 1)
    assert holds(client, "b", 2)
    assert len(files(service)) == 2
    assert client.drop("a")
    eventually(lambda: files(service), lambda found: len(found) == 1, "the first one, without a record, is removed")


def test_a_client_that_has_closed_leaves_its_records(service: StoreService, make: Make, run_dir: Path) -> None:
    with make(run_dir) as writer:
        assert writer.put("k", numbers(1, LARGE))
    with Client(run_dir, fail_open=False) as reader:
        assert holds(reader, "k", 1)
        assert len(files(service)) == 1
        view = reader.get("k", view=True, tensors="numpy")
        reader.flush()
        assert view is not None
        assert is_equal(view.record, numbers(1, LARGE))
        del view
        gc.collect()
        eventually(lambda: files(service), lambda found: not found, "the last lease has ended")


def test_threads_fill_side_by_side(service: StoreService, run_dir: Path) -> None:
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
                assert holds(client, f"{number} {index}", 100 * number + index, LARGE // 4)
    assert len(puts(service)) == 24
    assert "placed" in puts(service)


def test_a_forked_child_has_a_nursery_of_its_own(service: StoreService, run_dir: Path) -> None:
    with Client(run_dir, fail_open=False) as client:
        assert client.put("parent", numbers(1, LARGE))

        def child() -> Any:
            is_stored = bool(client.put("child", numbers(2, LARGE)))
            client.close()
            return is_stored

        assert in_child(child) is True
        assert client.put("parent again", numbers(3, LARGE))
        for key, seed in (("parent", 1), ("child", 2), ("parent again", 3)):
            assert holds(client, key, seed)
    assert puts(service) == ["placed"] * 3
    assert service.count(OpenNursery) == 2


def test_a_reader_without_descriptors_gets_a_copy(
    service: StoreService, client: Any, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.put("k", numbers(1, LARGE))
    with Client(run_dir, fail_open=False) as reader:
        assert reader.get("missing") is None
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            hit = reader.get("k", tensors="numpy")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert hit is not None, "a miss is not believed"
        assert is_equal(hit.record, numbers(1, LARGE))
    assert stats(service).inline_records == 1


def test_nurseries_that_are_gone_are_unmapped(
    service: StoreService, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_reader, "MAX_NURSERIES", 2)
    with Client(run_dir, fail_open=False) as reader:
        for index in range(4):
            with Client(run_dir, fail_open=False) as writer:
                assert writer.put(f"k{index}", numbers(index, LARGE))
            assert holds(reader, f"k{index}", index)
        targets = [os.readlink(f"/proc/self/map_files/{name}") for name in os.listdir("/proc/self/map_files")]
        assert all(holds(reader, f"k{index}", index) for index in range(4))
        session = present(reader._calls._sessions.present)
        assert len(session._store.reader.nurseries) == 2
    assert targets


def test_a_client_that_cuts_its_file_short_harms_only_its_own_records(service: StoreService, run_dir: Path) -> None:
    with Client(run_dir) as liar, Client(run_dir, fail_open=False) as other:
        assert liar.put("lost", numbers(1, LARGE))
        assert other.put("kept", numbers(2, LARGE))
        os.truncate(SHM_DIR / files(service)[0], 4096)
        assert other.get("lost") is None
        assert holds(other, "kept", 2)
        assert other.put("more", numbers(3, LARGE))


# ---- a process that dies, or is stopped


# ---- a nursery by itself


@pytest.fixture
def filled() -> Iterator[ClientNursery]:
    announcement = RingAnnouncement(os.getuid(), "f" * 32, 1, 1 << 20, 64, 1)
    with NurseryFiles(announcement) as made:
        made.create(7, 8 * LARGE, first_bytes=LARGE)
        nursery_of_client = ClientNursery(Grants(7, [], [(0, 3 * chunk_bytes(LARGE) + 4096)]), has_checksums=True)
        nursery_of_client.map(announcement)
        yield nursery_of_client
        nursery_of_client.close()


RECORD = encode({"x": np.ones(LARGE - 4096, np.uint8)})


def test_a_place_is_not_used_again_until_it_is_granted(filled: ClientNursery) -> None:
    places = [filled.lay(number, RECORD, b"note") for number in range(5)]
    assert [place is not None for place in places] == [True, True, True, False, False]
    assert len({place.offset for place in places if place is not None}) == 3
    filled.answered(1, None)
    assert filled.lay(5, RECORD, b"note") is None, "an answer alone brings nothing"
    first = present(places[1])
    filled.answered(0, Grants(8, [(0, 8 * LARGE)], []))
    assert filled.lay(6, RECORD, b"note") is None, "it is another nursery's"
    filled.answered(2, Grants(7, [(first.offset, first.offset + LARGE)], []))
    again = present(filled.lay(7, RECORD, b"note"))
    assert again.offset == first.offset
    filled.free(7)
    assert filled.lay(8, RECORD, b"note") is not None, "it was not sent"


@pytest.mark.parametrize(("target", "name"), [(nursery, "chunk_bytes"), (EncodedRecord, "write_into")])
def test_an_interrupt_costs_nothing(
    filled: ClientNursery, monkeypatch: pytest.MonkeyPatch, target: object, name: str
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for number in range(8):
        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(target, name, interrupt)
            filled.lay(number, RECORD, b"note")
    assert [filled.lay(number, RECORD, b"note") is not None for number in range(10, 14)] == [True] * 3 + [False]


def test_a_nursery_that_is_lost_while_it_is_filled_has_no_place(
    filled: ClientNursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = EncodedRecord.write_into

    def write_and_close(self: EncodedRecord, buffer: Any) -> None:
        write(self, buffer)
        filled.close()

    monkeypatch.setattr(EncodedRecord, "write_into", write_and_close)
    assert filled.lay(1, RECORD, b"note") is None
    assert filled.lay(2, RECORD, b"note") is None
