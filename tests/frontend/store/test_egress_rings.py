"""Rings of clients at the frontend: one real Frontend, clients with real rings, and clients that lie about theirs."""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from mmcached.frontend.store.egress_rings import EgressRings

from mmcached.frontend.server import CHECK_INTERVAL_S
from mmcached.shm import Claim, Host, RingWriter, encode
from mmcached.shm.segment.layout import Layout
from mmcached.shm.segment.mapped import SHM_DIR
from mmcached.shm.segment.segment import WriterSegment
from mmcached.shm.store.codec import Record
from mmcached.wire.config import GIB, MIB, ServiceConfig
from mmcached.wire.errors import MmcachedError, StaleHandle
from mmcached.wire.handle import RingAnnouncement
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages.parts import EgressPlace, Inline
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.stats import StoreStats
from tests.clock import Clock
from tests.frontend.fake_peers import DEADLINE_S, Bench, FakeClient
from tests.house import REPOSITORY

CONFIG = ServiceConfig(
    mm_processor_cache_gb=0,
    store_gb=4 * MIB / GIB,
    store_max_object_mb=1,
    limits=LimitsConfig(max_egress_rings=3, max_egress_ring_mb=2),
)


class Layer:
    """A client with a ring of its own, that says what it likes of it."""

    def __init__(self, client: FakeClient, bench: Bench, ring: RingWriter) -> None:
        self.client = client
        self.ring = ring
        self.number = 1000
        self._bench = bench

    def announce(self, ring: RingAnnouncement | None = None) -> None:
        self.number += 1
        ring = ring or self.ring.announcement
        self.client.channel.send(to_frontend.RegisterEgressRing(self.client.client_id, self.number, ring))

    def register(self, ring: RingAnnouncement | None = None) -> None:
        self.announce(ring)
        assert self.client.answer(to_client.EgressRingRegistered).request_id == self.number

    def refused(self, ring: RingAnnouncement | None = None) -> to_client.Failed:
        self.announce(ring)
        return self.client.answer(to_client.Failed)

    def fill(self, record: Record) -> Claim:
        encoded = encode(record)
        claim = self.ring.claim(encoded.nbytes)
        encoded.write_into(claim.buffer)
        return claim

    def place(self, claim: Claim) -> EgressPlace:
        return EgressPlace(self.ring.announcement.epoch, claim.offset, claim.nbytes)

    def send(self, key: str, place: EgressPlace, payload: list[Frame] | None = None, claim: int = 0) -> None:
        self.number += 1
        epoch = self._bench.first_epoch
        put = to_frontend.PutRecord(self.client.client_id, self.number, key, epoch, claim=claim, place=place)
        self.client.channel.send(put, payload or [])

    def put(self, key: str, record: Record, *, claim: int = 0) -> to_client.Stored:
        laid = self.fill(record)
        self.send(key, self.place(laid), claim=claim)
        answer = self.client.answer(to_client.Stored)
        self.ring.abort(laid)
        return answer

    def failed(self, key: str, place: EgressPlace, payload: list[Frame] | None = None) -> str:
        self.send(key, place, payload)
        failed = self.client.answer(to_client.Failed)
        assert failed.request_id == self.number
        return failed.error.code


@contextlib.contextmanager
def layer_of(bench: Bench, *, ring_bytes: int = MIB) -> Iterator[Layer]:
    client = bench.connect_client()
    with ring_of(client, ring_bytes) as ring:
        yield Layer(client, bench, ring)


def ring_of(client: FakeClient, ring_bytes: int) -> RingWriter:
    epochs = time.time_ns()
    layout = Layout(ring_bytes, 64, 1)
    segment = WriterSegment.create(layout, epoch=epochs, host=Host(), new_ring_id=lambda: client.client_id)
    return RingWriter(segment, max_object_bytes=ring_bytes)


@pytest.fixture
def layer(bench: Bench) -> Iterator[Layer]:
    with layer_of(bench) as layer:
        layer.register()
        yield layer


def record_of(value: int, num_bytes: int = 200_000) -> Record:
    return {"value": value, "pixels": np.full(num_bytes, value, np.uint8), "more": [np.arange(value)]}


def value_of(client: FakeClient, answer: to_client.Records) -> int:
    record = client.read(answer)
    assert set(record["pixels"].tolist()) == {record["value"]}
    assert record["more"][0].tolist() == list(range(record["value"]))
    return int(record["value"])


def store_stats(bench: Bench) -> StoreStats:
    return bench.frontend.stats().store


def mapped(bench: Bench) -> int:
    return len(bench.frontend.store.egress)


def open_segments() -> int:
    """Return how many descriptors of this process are of shared memory; threads open and close others meanwhile."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sum(link.startswith(f"{SHM_DIR}/") for link in links)


def look_again(bench: Bench, clock: Clock) -> None:
    clock.now += CHECK_INTERVAL_S
    bench.frontend.poll(0)


# ---- what it is for


def test_a_record_is_copied_out_of_its_clients_ring(bench: Bench, layer: Layer) -> None:
    reader = bench.connect_client()
    for value in range(1, 9):
        assert layer.put(f"k{value}", record_of(value)).is_stored
    assert [value_of(reader, reader.get(f"k{value}")) for value in range(1, 9)] == list(range(1, 9))
    stats = store_stats(bench)
    assert (stats.egress_rings, stats.egress_bytes, stats.egress_records, stats.puts) == (1, MIB, 8, 8)


def test_those_who_wait_get_what_is_not_kept_and_it_stays_theirs(bench: Bench) -> None:
    """The frames for a client that does not read yet are its own: the ring is used again at once."""
    waiter = bench.connect_client(is_reader=False)
    with layer_of(bench, ring_bytes=2 * MIB) as layer:
        layer.register()
        claim = layer.client.claim("k").claim
        waiter.ask("k")
        bench.pump(lambda: store_stats(bench).waits == 1)
        laid = layer.fill(record_of(5, 3 * MIB // 2))
        layer.send("k", layer.place(laid), claim=claim)
        assert layer.client.answer(to_client.Stored).reason.startswith("it is larger than one record may be")
        laid.buffer[:] = 0xEE
        answer = waiter.answer(to_client.Records)
    assert isinstance(answer.records[0], Inline)
    assert value_of(waiter, answer) == 5


def test_the_claim_of_a_record_that_could_not_be_read_stays(bench: Bench, layer: Layer) -> None:
    claim = layer.client.claim("k").claim
    laid = layer.fill(record_of(1))
    layer.send("k", msgspec.structs.replace(layer.place(laid), epoch=1), claim=claim)
    assert layer.client.answer(to_client.Failed).error.code == StaleHandle.code
    assert layer.client.put("k", record_of(2), claim=claim).is_stored
    assert value_of(layer.client, layer.client.get("k")) == 2


# ---- clients that are wrong


def test_a_place_outside_the_ring_or_without_a_record_is_refused(bench: Bench, layer: Layer) -> None:
    laid = layer.fill(record_of(1))
    place = layer.place(laid)
    wrong = {
        "offset at the end": (EgressPlace(place.epoch, MIB, 64), StaleHandle.code),
        "end behind the end": (EgressPlace(place.epoch, MIB - 64, 65), StaleHandle.code),
        "numbers beyond words": (EgressPlace(place.epoch, 2**63 - 1, 2**63 - 1), StaleHandle.code),
        "another ring": (EgressPlace(1, place.offset, place.nbytes), StaleHandle.code),
        "no bytes": (EgressPlace(place.epoch, place.offset, 0), "remote_protocol_error"),
        "less than it says": (EgressPlace(place.epoch, place.offset, place.nbytes - 1), "remote_protocol_error"),
        "more than it says": (EgressPlace(place.epoch, place.offset, place.nbytes + 1), "remote_protocol_error"),
        "not its beginning": (EgressPlace(place.epoch, place.offset + 8, place.nbytes), "remote_protocol_error"),
        "no record": (EgressPlace(place.epoch, MIB - 4096, 4096), "remote_protocol_error"),
    }
    for what, (each, code) in wrong.items():
        assert layer.failed("k", each) == code, what
    assert layer.failed("k", place, [b"frames too"]) == "remote_protocol_error"
    assert layer.client.get("k").records == [None]
    assert store_stats(bench).puts == 0
    layer.send("k", place)
    assert layer.client.answer(to_client.Stored).is_stored
    assert value_of(layer.client, layer.client.get("k")) == 1


def test_a_ring_is_its_clients_own(bench: Bench, layer: Layer) -> None:
    laid = layer.fill(record_of(1))
    with layer_of(bench) as other:
        assert other.failed("k", layer.place(laid)) == StaleHandle.code
        other.register()
        assert other.failed("k", layer.place(laid)) == StaleHandle.code


def test_an_announcement_that_cannot_be_is_refused(bench: Bench) -> None:
    with layer_of(bench) as layer:
        true = layer.ring.announcement
        lies = {
            "uid": 65534,
            "data_bytes": 2 * MIB + 64,
            "num_slots": 1 << 20,
            "max_readers": 512,
            "index_words": 1 << 20,
        }
        for field, value in lies.items():
            failed = layer.refused(msgspec.structs.replace(true, **{field: value}))
            assert failed.error.code == "invalid_request", field
            assert failed.error.details["field"] == f"ring.{field}"
        assert layer.refused(msgspec.structs.replace(true, data_bytes=MIB // 2)).error.code == "layout_mismatch"
        failed = layer.refused(msgspec.structs.replace(true, ring_id="0" * 32))
        assert failed.error.details["field"] == "ring.ring_id"
        data = SHM_DIR / true.data_name[1:]
        aside = data.rename(data.with_suffix(".aside"))
        os.mkfifo(data)
        assert layer.refused().error.code == "segment_error"
        data.unlink()
        data.symlink_to(aside)
        assert layer.refused().error.code == "segment_error"
        data.unlink()
        assert layer.refused().error.code == "segment_error"
        aside.rename(data)
        assert mapped(bench) == 0
        layer.register()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can own a file for another user")
def test_a_ring_of_another_user_is_not_opened(bench: Bench) -> None:
    with layer_of(bench) as layer:
        os.chown(SHM_DIR / layer.ring.announcement.data_name[1:], 65534, 65534)
        assert layer.refused().error.code == "segment_error"


def test_a_ring_whose_names_are_gone_stays_mapped_and_one_that_was_gone_before_is_refused(
    bench: Bench, layer: Layer
) -> None:
    with layer_of(bench) as late:
        for one in (layer, late):
            (SHM_DIR / one.ring.announcement.data_name[1:]).unlink()
        assert layer.put("k", record_of(3)).is_stored
        assert late.refused().error.code == "segment_error"


def test_a_ring_that_was_cut_short_is_not_read(bench: Bench, layer: Layer) -> None:
    laid = layer.fill(record_of(1))
    path = SHM_DIR / layer.ring.announcement.data_name[1:]
    size = path.stat().st_size
    os.truncate(path, 0)
    assert layer.failed("k", layer.place(laid)) == StaleHandle.code
    assert mapped(bench) == 0
    os.truncate(path, size)  # its writer lives in this process, and would die of it
    assert layer.client.put("k", record_of(2)).is_stored


def test_a_client_that_registers_a_thousand_rings_has_one(bench: Bench) -> None:
    with layer_of(bench) as layer:
        before = open_segments()
        for index in range(1000):
            if index % 20 == 19:
                layer.ring.close()
                layer.ring = ring_of(layer.client, MIB)
            layer.register()
        assert mapped(bench) == 1
        assert open_segments() == before + 1
        assert layer.put("k", record_of(4)).is_stored
        layer.ring.close()


def test_more_clients_than_rings(bench: Bench) -> None:
    with contextlib.ExitStack() as stack:
        layers = [stack.enter_context(layer_of(bench)) for _ in range(4)]
        for layer in layers[:3]:
            layer.register()
        failed = layers[3].refused()
        assert (failed.error.code, failed.error.details["limit"]) == ("service_unavailable", 3)
        layers[0].register()  # its place is its own
        layers[1].client.channel.send(to_frontend.ClientBye(layers[1].client.client_id))
        bench.pump(lambda: mapped(bench) == 2)
        layers[3].register()
        assert layers[3].put("k", record_of(1)).is_stored


def test_rings_leave_descriptors_for_others(bench: Bench) -> None:
    """The limit is half the reserve lower than it must be: what is left of other tests may close descriptors."""
    with layer_of(bench) as layer:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.open("/dev/null", os.O_RDONLY)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + CONFIG.limits.reserved_descriptors // 2, hard))
        try:
            assert layer.refused().error.code == "service_unavailable"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        layer.register()


# ---- the end of a client


@pytest.mark.parametrize("how", ["bye", "death", "connection"])
def test_the_ring_of_a_client_that_is_gone_is_let_go(bench: Bench, layer: Layer, clock: Clock, how: str) -> None:
    assert layer.put("k", record_of(1)).is_stored
    match how:
        case "bye":
            layer.client.channel.send(to_frontend.ClientBye(layer.client.client_id))
        case "death":
            layer.client.presence.close()
            look_again(bench, clock)
        case "connection":
            layer.client.connect_anew()
    bench.pump(lambda: mapped(bench) == 0)


def test_a_second_greeting_over_the_same_connection_keeps_the_ring(bench: Bench, layer: Layer) -> None:
    layer.client.hello()
    assert layer.put("k", record_of(1)).is_stored


@pytest.mark.parametrize("when", ["filled", "made"])
def test_a_client_that_is_killed_in_the_middle_of_a_put_leaves_nothing(bench: Bench, clock: Clock, when: str) -> None:
    """Its ring goes with it, mapped or not; the record that it was just laying there was never seen."""
    before = set(os.listdir(SHM_DIR))
    command = [sys.executable, "-m", "tests.frontend.egress_child", str(bench.directory.path), when]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as child:
        assert child.stdout is not None
        output = child.stdout.fileno()
        bench.pump(lambda: mapped(bench) == 1 or len(set(os.listdir(SHM_DIR)) - before) == 2)
        bench.pump(lambda: bool(select.select([output], [], [], 0)[0]))
        assert child.stdout.readline() == "half way\n"
        assert mapped(bench) == (when == "filled")
        assert len(set(os.listdir(SHM_DIR)) - before) == (2 if when == "made" else 0)
        child.send_signal(signal.SIGKILL)
        assert child.wait(DEADLINE_S) == -signal.SIGKILL
    look_again(bench, clock)
    bench.pump(lambda: mapped(bench) == 0)
    assert set(os.listdir(SHM_DIR)) == before
    client = bench.connect_client()
    assert [record is None for record in client.get("whole", "half").records] == [False, True]


# ---- by itself


def test_without_a_ring_nothing_is_read() -> None:
    rings = EgressRings(LimitsConfig())
    rings.leave("a" * 32)
    with pytest.raises(StaleHandle):
        rings.read("a" * 32, EgressPlace(1, 0, 64))


def test_what_is_written_meanwhile_changes_values_and_never_sizes(bench: Bench, layer: Layer) -> None:
    """A client writes over its record while it is read, at every step between the look and the copy."""
    rings, announcement = EgressRings(LimitsConfig()), layer.ring.announcement
    rings.register(layer.client.client_id, b"peer", announcement)
    laid = layer.fill(record_of(7))
    encoded = rings.read(layer.client.client_id, layer.place(laid))
    laid.buffer[:] = 0xFF
    target = np.zeros(encoded.nbytes + 64, np.uint8)
    encoded.write_into(target[: encoded.nbytes])
    assert not target[encoded.nbytes :].any()
    head = bytes(encoded.frames()[0])
    assert target[: len(head)].tobytes() == head != laid.buffer[: len(head)].tobytes()
    with pytest.raises(MmcachedError):
        rings.read(layer.client.client_id, layer.place(laid))
    del encoded
    rings.close()
    for _ in range(50):
        laid.buffer[:64] = np.frombuffer(secrets.token_bytes(64), np.uint8)
        assert layer.failed("k", layer.place(laid)) == "remote_protocol_error"
