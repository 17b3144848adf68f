"""The desk of the store, between one real Frontend with its real ring and clients with real entries and connections."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import posix_ipc
import pytest
from structlog.testing import capture_logs

from mmcached.cache.store_keys import store_key
from mmcached.frontend.server import CHECK_INTERVAL_S
from mmcached.frontend.store import record_sender
from mmcached.frontend.store.record_store import PutRefusal
from mmcached.frontend.store.ring_records import gc_paused
from mmcached.frontend.store.store_service import StoreService
from mmcached.shm import RingReader, encode
from mmcached.shm.ring.key_index import key_digest
from mmcached.shm.store.codec import Record, decode
from mmcached.wire.config import GIB, KIB, ServiceConfig
from mmcached.wire.errors import ChannelFull, error_from_wire
from mmcached.wire.handle import Handle
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages.parts import Inline
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.stats import StoreStats
from tests.clock import Clock
from tests.frontend.fake_peers import DEADLINE_S, Bench, FakeClient
from tests.frontend.integrity import check_store

STORE_BYTES = 64 * KIB
CONFIG = ServiceConfig(
    mm_processor_cache_gb=0,
    store_gb=STORE_BYTES / GIB,
    store_num_slots=64,
    store_max_clients=2,
    store_client_quota_gb=16 * KIB / GIB,
    max_num_requests=4,
    slow_log_ms=2.5,
    limits=LimitsConfig(claim_timeout_s=20.0),
)


def record_of(value: int, num_bytes: int = 1000) -> Record:
    return {"value": value, "pixels": np.full(num_bytes, value, np.uint8)}


def value_of(client: FakeClient, answer: to_client.Records, index: int = 0) -> int:
    """Return what `record_of` was given, and give the lease back."""
    record = client.read(answer, index)
    assert set(record["pixels"].tolist()) == {record["value"]}
    return int(record["value"])


def store_stats(bench: Bench) -> StoreStats:
    return bench.frontend.stats().store


def until(bench: Bench, wanted: Callable[[StoreStats], bool]) -> None:
    bench.pump(lambda: wanted(store_stats(bench)))


def look_again(clock: Clock) -> None:
    """Let the time come at which the frontend looks at deaths and deadlines."""
    clock.now += CHECK_INTERVAL_S


def wait_for(bench: Bench, client: FakeClient, key: str, *, timeout_s: float = 60.0) -> int:
    """Send a claim of what somebody else computes, and return its number when it waits."""
    before = store_stats(bench).waits
    number = client.ask(key, timeout_s=timeout_s)
    until(bench, lambda stats: stats.waits == before + 1)
    return number


# ---- get and put


def test_what_one_client_puts_another_reads_in_place(bench: Bench) -> None:
    writer, reader = bench.connect_client(is_reader=False), bench.connect_client()
    assert writer.put("a", record_of(7)).is_stored
    answer = reader.get("a", "missing", "a")
    assert [type(record) for record in answer.records] == [Handle, type(None), Handle]
    assert reader.payload == []
    assert store_stats(bench).ring.leases == 2
    assert [value_of(reader, answer, index) for index in (0, 2)] == [7, 7]
    stats = store_stats(bench)
    assert (stats.queries, stats.hits, stats.puts, stats.readers, stats.ring.leases) == (3, 2, 1, 1, 0)


def test_each_put_that_is_kept_is_measured_and_no_other(bench: Bench, clock: Clock) -> None:
    records = bench.frontend.store.records
    put = records.put

    def put_slowly(*args: Any, **named: Any) -> PutRefusal | None:
        clock.now += 0.003
        return put(*args, **named)

    records.put = put_slowly  # type: ignore[method-assign]
    client = bench.connect_client(is_reader=False)
    assert client.put("a", record_of(1)).is_stored
    assert not client.put("b", record_of(1, STORE_BYTES)).is_stored
    found = store_stats(bench).put_latency
    assert (found.num, found.sum_ns) == (1, 3_000_000)
    (slow,) = bench.frontend.stats().slow_log.last
    assert (slow.what, slow.took_ns) == ("put", 3_000_000)
    assert slow.number >= 1000


def test_a_client_without_an_entry_gets_the_same_record_as_frames(bench: Bench) -> None:
    client = bench.connect_client(is_reader=False)
    client.put("a", record_of(1))
    client.put("b", record_of(2))
    answer = client.get("a", "b")
    assert all(isinstance(record, Inline) for record in answer.records)
    assert [value_of(client, answer, index) for index in (0, 1)] == [1, 2]
    stats = store_stats(bench)
    assert (stats.inline_records, stats.ring.leases, stats.readers) == (2, 0, 0)


def test_an_answer_with_frames_has_a_limit_and_one_record_always_fits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_sender, "MAX_INLINE_BYTES", 2500)
    client = bench.connect_client(is_reader=False)
    client.put("a", record_of(1))
    client.put("large", record_of(2, 3000))
    kinds = [type(record) for record in client.get("a", "missing", "a", "a", "a").records]
    assert kinds == [Inline, type(None), Inline, type(None), type(None)]
    assert store_stats(bench).withheld_records == 2
    assert value_of(client, client.get("large")) == 2


def test_what_a_key_has_stays_and_tenants_are_apart(bench: Bench) -> None:
    client = bench.connect_client()
    assert client.put("a", record_of(1), tenant="t").is_stored
    assert client.put("a", record_of(2), tenant="t").is_stored
    assert client.get("a").records == [None]
    assert value_of(client, client.get("a", tenant="t")) == 1


@pytest.mark.parametrize("byte", [0x00, 0xFF])
@pytest.mark.parametrize("reach", ["what a client maps", "the control object, by its name"])
def test_a_client_that_writes_over_all_it_may_write_costs_no_one_else_a_byte(
    bench: Bench, clock: Clock, byte: int, reach: str
) -> None:
    victim, wild = bench.connect_client(), bench.connect_client()
    victim.put("held", record_of(7))
    answer = victim.get("held")
    handle = answer.records[0]
    assert isinstance(handle, Handle)
    wild.get("held")
    look_again(clock)
    bench.frontend.poll(0)
    assert victim.entry is not None
    assert wild.entry is not None
    with RingReader.open(victim.entry.announcement) as reader:
        view = decode(reader.view(handle), tensors="numpy")["pixels"]
        if reach == "what a client maps":
            words = wild.entry._control.words  # type: ignore[union-attr]
            words[:] = memoryview(bytes([byte]) * words.nbytes).cast("Q")
        else:
            with posix_ipc_words(victim.entry.announcement.ctl_name) as words:
                words[:] = memoryview(bytes([byte]) * words.nbytes).cast("Q")
        look_again(clock)
        for index in range(200):
            assert victim.put(f"new {index}", record_of(index % 100, 2000)).is_stored
            if index == 100:
                bench.frontend.store.flush(is_new_epoch=False)
        assert set(view.tolist()) == {7}
        assert value_of(victim, victim.get("new 199")) == 99
        del view
    assert wild.put("still served", record_of(3)).is_stored
    assert isinstance(wild.get("still served").records[0], Inline), "it is frozen as a reader"
    if reach == "what a client maps":
        assert isinstance(victim.get("new 199").records[0], Handle)
    for client in (victim, wild):
        client.close()
    look_again(clock)
    bench.frontend.poll(0)
    assert store_stats(bench).ring.pinned_bytes == 0
    bench.clients.clear()
    if reach == "what a client maps":
        fresh = bench.connect_client()
        assert isinstance(fresh.get("still served").records[0], Handle)


@contextlib.contextmanager
def posix_ipc_words(name: str) -> Iterator[memoryview]:
    fd = posix_ipc.SharedMemory(name).fd
    with mmap.mmap(fd, 0) as mapping, memoryview(mapping) as whole, whole.cast("Q") as words:
        os.close(fd)
        yield words


def test_presence_needs_no_record_to_travel_and_the_index_needs_no_question(bench: Bench) -> None:
    client = bench.connect_client()
    client.put("a", record_of(1), tenant="t")
    client.channel.send(to_frontend.HaveRecords(9, ["a", "b"], "t"))
    assert client.answer(to_client.Present) == to_client.Present(9, [True, False])
    assert client.entry is not None
    with RingReader.open(client.entry.announcement) as reader:
        assert [reader.look.find(key_digest(store_key("t", key))) is None for key in ("a", "b")] == [False, True]
    client.channel.send(to_frontend.DropRecord(10, "a", "t"))
    dropped = client.answer(to_client.Stored)
    assert (dropped.request_id, dropped.is_stored) == (10, False)
    with RingReader.open(client.entry.announcement) as reader:
        assert not reader.look.find(key_digest(store_key("t", "a")))
    assert client.get("a", tenant="t").records == [None]


def test_what_is_not_kept_says_why(bench: Bench) -> None:
    client = bench.connect_client()
    answer = client.put("a", record_of(1, STORE_BYTES))
    assert (answer.is_stored, answer.reason) == (False, PutRefusal.TOO_LARGE.format(limit=STORE_BYTES // 4))
    client.send_put("a", record_of(1), epoch=bench.first_epoch - 1)
    answer = client.answer(to_client.Stored)
    assert (answer.is_stored, answer.reason, answer.store_epoch) == (False, PutRefusal.OLD_EPOCH, bench.first_epoch)
    assert (store_stats(bench).refusals, store_stats(bench).puts) == (2, 0)


def test_frames_that_are_no_record_are_refused_and_keep_nothing(bench: Bench) -> None:
    client = bench.connect_client()
    claim = client.claim("a").claim
    joined = encode(record_of(1)).joined()
    wrong: tuple[list[bytes], ...] = ([], [b"no record"], [b"no record", b"tensor"], [joined[:-1]], [joined, b""])
    for payload in wrong:
        put = to_frontend.PutRecord(client.client_id, 9, "a", bench.first_epoch, claim=claim)
        client.channel.send(put, payload)
        failed = client.answer(to_client.Failed)
        assert (failed.request_id, failed.error.code) == (9, "remote_protocol_error")
    assert client.get("a").records == [None]
    stats = bench.frontend.stats()
    assert (stats.protocol_errors, stats.store.computing, stats.store.puts) == (len(wrong), 1, 0)
    assert client.put("a", record_of(1), claim=claim).is_stored, "the claim is as it was"


@pytest.mark.parametrize("is_joined", [False, True])
def test_a_record_may_come_as_one_frame_or_several(bench: Bench, is_joined: bool) -> None:
    client = bench.connect_client()
    assert client.put("a", record_of(7), is_joined=is_joined).is_stored
    assert value_of(client, client.get("a")) == 7


# ---- get or compute


def test_the_first_who_asks_computes_and_the_others_get_it(bench: Bench) -> None:
    owner, reader, plain = bench.connect_client(), bench.connect_client(), bench.connect_client(is_reader=False)
    claimed = owner.claim("a")
    assert claimed.store_epoch == bench.first_epoch
    numbers = [wait_for(bench, client, "a") for client in (reader, plain)]
    assert owner.put("a", record_of(5), claim=claimed.claim).is_stored
    answers = [client.answer(to_client.Records) for client in (reader, plain)]
    assert [answer.request_id for answer in answers] == numbers
    assert isinstance(answers[0].records[0], Handle)
    assert isinstance(answers[1].records[0], Inline)
    assert [value_of(client, answer) for client, answer in zip((reader, plain), answers, strict=True)] == [5, 5]
    stats = store_stats(bench)
    assert (stats.claims, stats.waits, stats.computing, stats.waiting, stats.ring.leases) == (1, 2, 0, 0, 0)
    owner.ask("a")
    assert value_of(owner, owner.answer(to_client.Records)) == 5, "a hit"


@pytest.mark.parametrize("is_joined", [False, True])
def test_what_is_not_kept_goes_to_those_who_wait_all_the_same(bench: Bench, is_joined: bool) -> None:
    owner, waiter = bench.connect_client(), bench.connect_client()
    claim = owner.claim("a").claim
    wait_for(bench, waiter, "a")
    answered = owner.put("a", record_of(5, STORE_BYTES), claim=claim, is_joined=is_joined)
    assert answered.reason == PutRefusal.TOO_LARGE.format(limit=STORE_BYTES // 4)
    answer = waiter.answer(to_client.Records)
    assert isinstance(answer.records[0], Inline)
    assert value_of(waiter, answer) == 5
    assert waiter.claim("a").claim != claim, "it was not kept, so the next who asks computes"


def test_a_put_without_a_claim_serves_those_who_wait_too(bench: Bench) -> None:
    owner, waiter, other = (bench.connect_client(is_reader=False) for _ in range(3))
    claim = owner.claim("a").claim
    wait_for(bench, waiter, "a")
    other.put("a", record_of(1))
    assert value_of(waiter, waiter.answer(to_client.Records)) == 1
    assert owner.put("a", record_of(2), claim=claim).is_stored
    assert value_of(owner, owner.get("a")) == 1
    assert store_stats(bench).computing == 0


@pytest.mark.parametrize("how", ["drop", "cancel", "bye", "death", "old epoch", "deadline", "connection"])
def test_when_the_owner_does_not_compute_the_next_does(bench: Bench, clock: Clock, how: str) -> None:
    owner, waiter = bench.connect_client(), bench.connect_client()
    former = owner.claim("a")
    number = wait_for(bench, waiter, "a", timeout_s=59)
    match how:
        case "drop":
            owner.channel.send(to_frontend.DropClaim(owner.client_id, former.claim))
        case "cancel":  # it gave up before it heard
            owner.channel.send(to_frontend.Cancel(owner.client_id, former.request_id))
        case "bye":
            owner.channel.send(to_frontend.ClientBye(owner.client_id))
        case "death":
            owner.presence.close()
            look_again(clock)
        case "old epoch":
            owner.send_put("a", record_of(1), epoch=bench.first_epoch - 1, claim=former.claim)
        case "deadline":
            clock.now += CONFIG.limits.claim_timeout_s + 1
        case "connection":
            owner.connect_anew()
    claimed = waiter.answer(to_client.Claimed)
    assert claimed.request_id == number
    assert claimed.claim != former.claim
    is_late = how in ("deadline", "connection")
    if is_late:
        assert owner.put("a", record_of(1), claim=former.claim).is_stored, "a late record is as good as any"
    assert waiter.put("a", record_of(2), claim=claimed.claim).is_stored
    assert value_of(waiter, waiter.get("a")) == (1 if is_late else 2)
    assert store_stats(bench).computing == 0


def test_a_token_of_another_client_or_key_is_refused(bench: Bench) -> None:
    owner, thief = bench.connect_client(is_reader=False), bench.connect_client(is_reader=False)
    claim = owner.claim("a").claim
    for client, key in ((thief, "a"), (owner, "b")):
        client.send_put(key, record_of(1), epoch=bench.first_epoch, claim=claim)
        assert client.answer(to_client.Failed).error.code == "remote_protocol_error"
    thief.channel.send(to_frontend.DropClaim(thief.client_id, claim))
    bench.pump(lambda: bench.frontend.stats().protocol_errors == 3)
    stats = store_stats(bench)
    assert (stats.puts, stats.computing) == (0, 1)
    assert owner.put("a", record_of(1), claim=claim).is_stored


def test_who_waits_too_long_is_told_so(bench: Bench, clock: Clock) -> None:
    owner, waiter = bench.connect_client(), bench.connect_client()
    owner.claim("a")
    number = wait_for(bench, waiter, "a", timeout_s=5.0)
    clock.now += 6
    failed = waiter.answer(to_client.Failed)
    assert (failed.request_id, failed.error.code) == (number, "deadline_exceeded")
    assert error_from_wire(failed.error).details["timeout_s"] == 5.0
    assert (store_stats(bench).waiting, store_stats(bench).computing) == (0, 1)


def test_who_cancels_does_not_wait(bench: Bench) -> None:
    owner, waiter = bench.connect_client(), bench.connect_client()
    claim = owner.claim("a").claim
    number = wait_for(bench, waiter, "a")
    waiter.channel.send(to_frontend.Cancel(waiter.client_id, number))
    until(bench, lambda stats: stats.waiting == 0)
    owner.put("a", record_of(1), claim=claim)
    assert not waiter.channel.wait(0)
    assert store_stats(bench).ring.leases == 0


def test_claims_and_waits_are_bounded(bench: Bench) -> None:
    client = bench.connect_client()
    for index in range(4):
        client.claim(str(index))
    client.ask("one more")
    assert error_from_wire(client.answer(to_client.Failed).error).retryable


def test_without_a_store_it_is_computed_once_all_the_same(run_dir: Path, clock: Clock) -> None:
    with Bench(run_dir, ServiceConfig(mm_processor_cache_gb=0, store_gb=0), clock) as bench:
        owner, waiter = bench.connect_client(is_reader=False), bench.connect_client(is_reader=False)
        assert owner.hello().store_ring is None
        claim = owner.claim("a").claim
        wait_for(bench, waiter, "a")
        assert owner.put("a", record_of(3), claim=claim).reason == PutRefusal.NO_STORE
        assert value_of(waiter, waiter.answer(to_client.Records)) == 3
        assert waiter.get("a").records == [None]


def test_those_who_wait_are_told_that_the_service_stops(run_dir: Path, clock: Clock) -> None:
    with Bench(run_dir, CONFIG, clock) as bench:
        owner, waiter = bench.connect_client(), bench.connect_client()
        owner.claim("a")
        number = wait_for(bench, waiter, "a")
        bench.frontend.close()
        message, _ = waiter.channel.receive(DEADLINE_S)
    assert isinstance(message, to_client.Failed)
    assert (message.request_id, message.error.code) == (number, "request_aborted")


# ---- epochs


@pytest.mark.parametrize("is_new_epoch", [False, True])
def test_a_flush_forgets_and_a_new_epoch_also_what_is_being_computed(bench: Bench, is_new_epoch: bool) -> None:
    owner, first, second = (bench.connect_client(is_reader=False) for _ in range(3))
    owner.put("kept", record_of(1))
    claim = owner.claim("a").claim
    numbers = [wait_for(bench, client, "a") for client in (first, second)]
    bench.client.send(to_frontend.Flush(7, is_new_epoch))
    assert bench.answer(to_client.Flushed).request_id == 7
    assert owner.get("kept").records == [None]
    claimed = first.answer(to_client.Claimed) if is_new_epoch else None
    owner.send_put("a", record_of(2), epoch=bench.first_epoch, claim=claim)
    stored = owner.answer(to_client.Stored)
    assert stored.is_stored == (not is_new_epoch)
    assert stored.store_epoch == owner.hello().store_epoch == bench.first_epoch + is_new_epoch
    if claimed is not None:
        assert (claimed.request_id, claimed.store_epoch) == (numbers[0], bench.first_epoch + 1)
        assert not second.channel.wait(0), "it waits on"
        assert first.put("a", record_of(3), claim=claimed.claim).is_stored
    assert value_of(second, second.answer(to_client.Records)) == (3 if is_new_epoch else 2)
    assert store_stats(bench).new_epochs == is_new_epoch


def test_who_reads_under_a_lease_reads_on_over_a_new_epoch(bench: Bench) -> None:
    client = bench.connect_client()
    client.put("a", record_of(1))
    answer = client.get("a")
    bench.client.send(to_frontend.Flush(1, True))
    bench.answer(to_client.Flushed)
    for index in range(100):
        client.put(f"more {index}", record_of(9))
    (found,) = answer.records
    assert isinstance(found, Handle)
    assert client.entry is not None
    with RingReader.open(client.entry.announcement) as reader:
        payload = bytes(reader.view(found))
    assert payload.count(b"\x01" * 1000) == 1
    client.entry.give_back(found)
    assert store_stats(bench).ring.leases == 0


# ---- entries


def test_entries_are_for_those_who_hold_them(bench: Bench) -> None:
    client, other = bench.connect_client(), bench.connect_client(is_reader=False)
    assert client.entry is not None
    names = client.entry.announcement
    for epoch, reader_id, incarnation in (
        (names.epoch, client.entry.reader_id, client.entry.incarnation),  # another client's
        (names.epoch, 1 - client.entry.reader_id, 77),  # nobody holds it
        (names.epoch, 99, 1),
    ):
        other.channel.send(to_frontend.RegisterReader(other.client_id, 5, epoch, reader_id, incarnation))
        assert other.answer(to_client.ReaderRegistered) == to_client.ReaderRegistered(5, False)
    client.put("a", record_of(1))
    stolen = to_frontend.GetRecords(other.client_id, 6, ["a"], incarnation=client.entry.incarnation)
    other.channel.send(stolen)
    assert isinstance(other.answer(to_client.Records).records[0], Inline)
    client.channel.send(to_frontend.GetRecords(client.client_id, 7, ["a"]))
    assert isinstance(client.answer(to_client.Records).records[0], Inline), "it names no entry"
    client.channel.send(
        to_frontend.RegisterReader(
            client.client_id, 8, names.epoch + 1, client.entry.reader_id, client.entry.incarnation
        )
    )
    assert not client.answer(to_client.ReaderRegistered).is_attached, "another ring's"
    assert store_stats(bench).readers == 1


def test_an_entry_that_is_announced_again_stays_as_it_is(bench: Bench) -> None:
    client = bench.connect_client()
    client.put("a", record_of(1))
    held = client.get("a")
    for _ in range(2):
        client.channel.send(client.register_message())
        assert client.answer(to_client.ReaderRegistered).is_attached
    assert isinstance(client.get("a").records[0], Handle)
    assert value_of(client, held) == 1


def test_a_client_may_lose_its_entry_and_take_another(bench: Bench, clock: Clock) -> None:
    client = bench.connect_client()
    client.put("a", record_of(1))
    client.get("a")
    assert client.entry is not None
    client.entry.close()
    look_again(clock)
    until(bench, lambda stats: (stats.readers, stats.ring.leases) == (0, 0))
    assert isinstance(client.get("a").records[0], Inline)
    client.entry = None
    assert client.register()
    assert value_of(client, client.get("a")) == 1
    client.channel.send(to_frontend.ClientBye(client.client_id))
    until(bench, lambda stats: stats.readers == 0)


def test_a_client_that_is_gone_holds_nothing(bench: Bench, clock: Clock) -> None:
    client, other = bench.connect_client(), bench.connect_client(is_reader=False)
    client.put("a", record_of(1))
    client.get("a")
    client.claim("b")
    bench.clients.remove(client)
    client.close()
    look_again(clock)
    until(bench, lambda stats: (stats.readers, stats.ring.leases, stats.computing) == (0, 0, 0))
    assert other.register()
    assert value_of(other, other.get("a")) == 1


# ---- answers that cannot be sent


class Sender:
    """Takes what the desk sends; refuses it for peers that do not read."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, object]] = []
        self.deaf: set[bytes] = set()

    def send(self, peer: bytes, message: object, payload: Sequence[Frame] = ()) -> None:
        if peer in self.deaf:
            raise ChannelFull("it does not read")
        self.sent.append((peer, message))

    def __contains__(self, peer: bytes) -> bool:
        return True

    def try_send(self, peer: bytes, message: object, payload: Sequence[Frame] = ()) -> bool:
        try:
            self.send(peer, message, payload)
        except ChannelFull:
            return False
        return True


@pytest.fixture
def sender() -> Sender:
    return Sender()


@pytest.fixture
def desk(sender: Sender, clock: Clock) -> Iterator[StoreService]:
    with StoreService(CONFIG, channel=sender, clock=clock) as desk:
        yield desk
        check_store(desk)


ANN, BOB, EVE = (letter * 32 for letter in "abe")


def three_claim(desk: StoreService) -> None:
    for client_id, peer in ((ANN, b"ann"), (BOB, b"bob"), (EVE, b"eve")):
        desk.handle(peer, to_frontend.ClaimRecord(client_id, 1, "a", 5.0), [])


def test_a_claim_whose_owner_cannot_be_told_passes_on(desk: StoreService, sender: Sender) -> None:
    three_claim(desk)
    (_, claimed) = sender.sent.pop()
    assert isinstance(claimed, to_client.Claimed)
    sender.deaf.add(b"bob")
    desk.end_client(ANN)
    ((peer, claimed),) = sender.sent
    assert peer == b"eve"
    assert isinstance(claimed, to_client.Claimed)
    sender.deaf.add(b"eve")
    desk.handle(b"eve", to_frontend.DropClaim(EVE, claimed.claim), [])
    assert (desk.stats().computing, desk.stats().waiting) == (0, 0)
    desk.handle(b"eve", to_frontend.ClaimRecord(EVE, 2, "a", 5.0), [])
    assert desk.stats().computing == 0, "the first owner cannot be told either"


def test_a_reader_over_another_connection_ends_what_was_under_way_over_the_former(desk: StoreService) -> None:
    desk.handle(b"old", to_frontend.ClaimRecord(ANN, 1, "a", 5.0), [])
    desk.handle(b"old", to_frontend.RegisterReader(ANN, 2, 0, 0, 0), [])
    assert desk.stats().computing == 1
    desk.handle(b"new", to_frontend.RegisterReader(ANN, 3, 0, 0, 0), [])
    assert desk.stats().computing == 0


def test_one_who_waits_and_does_not_read_costs_the_others_nothing(desk: StoreService, sender: Sender) -> None:
    three_claim(desk)
    sender.deaf.add(b"bob")
    desk.handle(b"ann", to_frontend.PutRecord(ANN, 2, "a", desk.records.epoch), encode(record_of(1)).frames())
    assert [(peer, type(m)) for peer, m in sender.sent[1:]] == [(b"eve", to_client.Records), (b"ann", to_client.Stored)]


def test_what_is_wrong_about_a_message_without_an_answer_is_only_counted(desk: StoreService, sender: Sender) -> None:
    three_claim(desk)
    (_, claimed) = sender.sent.pop()
    assert isinstance(claimed, to_client.Claimed)
    desk.handle(b"bob", to_frontend.DropClaim(BOB, claimed.claim), [])
    assert (desk.num_protocol_errors, sender.sent) == (1, [])


def test_it_is_logged_what_is_taken_over_of_a_former_frontend_and_how_long_it_took(
    run_dir: Path, sender: Sender, clock: Clock
) -> None:
    config = msgspec.structs.replace(CONFIG, keep_cache=True)
    with StoreService(config, channel=sender, clock=clock, home=run_dir) as former:
        former.records.put("", "a", encode(record_of(1)), epoch=former.records.epoch)
    with capture_logs() as logs, StoreService(CONFIG, channel=sender, clock=clock, home=run_dir):
        pass
    (line,) = [line for line in logs if line["event"] == "records taken over"]
    assert line["records"] == 1
    assert line["took_s"] >= 0


@pytest.mark.parametrize("is_enabled", [True, False])
def test_nobody_looks_for_garbage_among_records_that_are_taken_over(is_enabled: bool) -> None:
    was_enabled = gc.isenabled()
    try:
        (gc.enable if is_enabled else gc.disable)()
        with gc_paused():
            assert not gc.isenabled()
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
