"""Nurseries at the frontend: one real Frontend, and clients that keep to their grants, and that do not."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial

import pytest

from mmcached.cache.store_keys import about_record, store_key
from mmcached.frontend.server import CHECK_INTERVAL_S
from mmcached.frontend.store.nursery_copies import NurseryCopies
from mmcached.frontend.store.record_store import PutRefusal
from mmcached.shm import RingWriter, encode
from mmcached.shm.ring.slot_table import has_expired
from mmcached.shm.segment.layout import chunk_bytes
from mmcached.shm.segment.mapped import SHM_DIR
from mmcached.shm.segment.nursery_files import open_nursery
from mmcached.shm.segment.pages import Pages
from mmcached.shm.store.record_note import pack_note
from mmcached.wire.config import MIB, ServiceConfig
from mmcached.wire.handle import Handle
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages.parts import MIN_PLACED_BYTES, Grants, NurseryPlace
from tests.client.records import numbers
from tests.clock import Clock
from tests.frontend.fake_peers import Bench, FakeClient
from tests.frontend.integrity import check_frontend
from tests.present import present
from tests.shm.processes import wait_until
from tests.shm.seekers import Seeker

CONFIG = ServiceConfig(mm_processor_cache_gb=0, store_gb=1 / 16, limits=LimitsConfig(max_nurseries=2))
LARGE = 256 << 10
RECORD = encode(numbers(1, LARGE))


class Layer:
    """A client with a nursery, that puts what it likes."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.client: FakeClient = bench.connect_client()
        self.number = 1000
        self.grants: Grants | None = None
        self.pages: Pages | None = None

    def open(self, nbytes: int = LARGE) -> to_client.NurseryOpened:
        self.number += 1
        self.client.channel.send(to_frontend.OpenNursery(self.client.client_id, self.number, nbytes))
        opened = self.client.answer(to_client.NurseryOpened)
        ring = present(self.bench.frontend.store.announcement)
        self.grants, self.pages = opened.grants, open_nursery(ring, opened.grants.nursery, is_writer=True)
        return opened

    def close(self) -> None:
        if self.pages is not None:
            self.pages.close()
            self.pages = None

    def refused(self) -> str:
        self.number += 1
        self.client.channel.send(to_frontend.OpenNursery(self.client.client_id, self.number, LARGE))
        return self.client.answer(to_client.Failed).error.code

    def lay(self, key: str, *, about: str | None = None) -> NurseryPlace:
        """Lay the record into the first place; with the note of another key, if that is named."""
        assert self.grants is not None
        assert self.pages is not None
        named = key if about is None else about
        note = pack_note(store_key("", named), about_record("", named, 1))
        offset = (self.grants.places + self.grants.cold_places)[0][0]
        data = bytearray(RECORD.nbytes)
        RECORD.write_into(memoryview(data))
        self.pages[offset : offset + RECORD.nbytes] = bytes(data)
        self.pages[offset + RECORD.nbytes : offset + RECORD.nbytes + len(note)] = note
        return NurseryPlace(self.grants.nursery, offset, RECORD.nbytes, len(note))

    def send(
        self,
        key: str,
        place: NurseryPlace | None,
        *,
        epoch: int = 0,
        frames: list[bytes] | None = None,
        ttl_s: float = 0.0,
    ) -> None:
        self.number += 1
        put = to_frontend.PutRecord(
            self.client.client_id, self.number, key, epoch or self.bench.first_epoch, place=place, ttl_s=ttl_s
        )
        self.client.channel.send(put, frames or [])

    def put(self, key: str, place: NurseryPlace, *, epoch: int = 0) -> to_client.Stored:
        self.send(key, place, epoch=epoch)
        return self.client.answer(to_client.Stored)

    def failed(self, key: str, place: NurseryPlace, frames: list[bytes] | None = None) -> str:
        self.send(key, place, frames=frames)
        return self.client.answer(to_client.Failed).error.code


@pytest.fixture
def layer(bench: Bench) -> Iterator[Layer]:
    made = Layer(bench)
    made.open()
    yield made
    check_frontend(bench.frontend)
    made.close()


def is_kept(layer: Layer, key: str) -> bool:
    return layer.bench.frontend.store.records.has("", key)


def num_files() -> int:
    return sum("nursery" in name for name in os.listdir(SHM_DIR))


@pytest.mark.parametrize("nbytes", [0, MIN_PLACED_BYTES - 1])
def test_space_for_less_than_a_placed_record_is_refused(layer: Layer, nbytes: int) -> None:
    """Places of no bytes would be granted without end."""
    layer.client.channel.send(to_frontend.OpenNursery(layer.client.client_id, 7, nbytes))
    error = layer.client.answer(to_client.Failed).error
    assert (error.code, error.details["field"]) == ("remote_protocol_error", "$[3]")
    assert layer.put("k", layer.lay("k")).is_stored


def test_a_record_is_published_where_it_lies_and_comes_as_frames_to_others(layer: Layer) -> None:
    place = layer.lay("k")
    stored = layer.put("k", place)
    assert stored.is_stored
    handle = present(layer.bench.frontend.store.records.find("", "k"))
    assert (handle.nursery, handle.offset, handle.nbytes) == (place.nursery, place.offset, place.nbytes)
    other = layer.bench.connect_client()
    other.channel.send(to_frontend.GetRecords(other.client_id, 1, ["k"]))
    record = other.read(other.answer(to_client.Records))
    assert record.keys() == numbers(1, LARGE).keys()


def test_a_place_that_was_not_granted_costs_this_put_alone(layer: Layer) -> None:
    place = layer.lay("k")
    another = Layer(layer.bench)
    another.open()
    for nursery, offset, nbytes in (
        (place.nursery, place.offset + 64 * MIB, place.nbytes),
        (place.nursery, place.offset + 8, place.nbytes - 64),
        (place.nursery + 1, place.offset, place.nbytes),
        (99, place.offset, place.nbytes),
    ):
        assert layer.failed("k", NurseryPlace(nursery, offset, nbytes, place.note_bytes)) == "stale_handle"
    assert another.failed("k", place) == "stale_handle", "another connection's"
    another.close()
    assert not is_kept(layer, "k")
    assert layer.put("k", place).is_stored
    assert layer.failed("l", place) == "stale_handle", "what was sent is the frontend's"


def test_what_is_no_record_is_refused_and_its_place_is_granted_again(layer: Layer) -> None:
    place = layer.lay("k")
    assert layer.pages is not None
    head = layer.pages[place.offset : place.offset + 8]
    layer.pages[place.offset : place.offset + 8] = b"\xff" * 8
    assert layer.failed("k", place) == "remote_protocol_error"
    layer.pages[place.offset : place.offset + 8] = head
    assert layer.failed("k", place) == "stale_handle", "until it is granted"
    layer.send("small", None, frames=[bytes(frame) for frame in encode({"a": 1}).frames()])
    granted = present(layer.client.answer(to_client.Stored).grants)
    assert any(begin <= place.offset < end for begin, end in granted.places)
    assert layer.put("k", place).is_stored


def test_what_is_not_kept_is_granted_again_with_the_same_answer(layer: Layer) -> None:
    layer.close()
    layer.open(2 * LARGE)
    for epoch in (1, 0, 0):  # an old epoch, kept, exists
        place = layer.lay("k")
        stored = layer.put("k", place, epoch=epoch)
        has_one = layer.bench.frontend.store.records.find("", "k")
        granted = stored.grants
        assert stored.is_stored == (has_one is not None)
        end = place.offset + chunk_bytes(place.nbytes + place.note_bytes)
        if has_one is not None and has_one.offset == place.offset:
            layer.grants = Grants(place.nursery, [(end, end + end - place.offset)], [])  # the second of the first two
        else:
            assert granted is not None
            assert any(begin <= place.offset and end <= stop for begin, stop in granted.places)


def test_a_small_record_and_frames_beside_a_place_are_refused(layer: Layer) -> None:
    place = layer.lay("k")
    assert layer.failed("k", place, [b"frame"]) == "remote_protocol_error"
    assert layer.put("k", place).is_stored, "it was not taken"
    assert place.nbytes >= MIN_PLACED_BYTES


def test_a_file_that_is_cut_short_loses_its_own_records(layer: Layer) -> None:
    first = layer.lay("k")
    assert layer.put("k", first).is_stored
    ring = present(layer.bench.frontend.store.announcement)
    os.truncate(SHM_DIR / ring.nursery_name(first.nursery)[1:], 4096)
    other = layer.bench.connect_client()
    other.channel.send(to_frontend.GetRecords(other.client_id, 1, ["k"]))
    assert other.answer(to_client.Records).records == [None]


def test_a_record_that_its_client_has_spoiled_costs_who_asks_for_it_nothing_else(layer: Layer) -> None:
    place = layer.lay("k")
    assert layer.put("k", place).is_stored
    assert layer.pages is not None
    layer.pages[place.offset : place.offset + 64] = b"\xff" * 64
    other = layer.bench.connect_client(is_reader=False)
    assert other.put("small", {"a": 1}).is_stored
    other.channel.send(to_frontend.GetRecords(other.client_id, 1, ["k", "small"]))
    spoiled, small = other.answer(to_client.Records).records
    assert spoiled is None
    assert small is not None
    assert not is_kept(layer, "k"), "else readers that can map it would find it, and ask here, each time"


def test_a_spoiled_head_has_no_rows(layer: Layer) -> None:
    place = layer.lay("k")
    assert layer.put("k", place).is_stored
    assert layer.pages is not None
    layer.pages[place.offset : place.offset + 64] = b"\xff" * 64
    assert layer.bench.frontend.store.records.num_rows("", "k") == 0
    assert not is_kept(layer, "k")


def test_those_who_wait_for_a_record_that_is_spoiled_in_its_put_wait_for_the_next(
    layer: Layer, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = layer.bench.connect_client()
    place = layer.lay("k")
    claim = other.claim("k").claim
    waiting = layer.bench.connect_client()
    request_id = waiting.ask("k")
    layer.bench.pump(lambda: layer.bench.frontend.store.claims.num_waiting == 1)

    def refuse(*_: object, **__: object) -> PutRefusal:
        assert layer.pages is not None
        layer.pages[place.offset : place.offset + 64] = b"\xff" * 64
        return PutRefusal.FULL

    with monkeypatch.context() as patch:
        patch.setattr(layer.bench.frontend.store.records, "put", refuse)
        assert layer.failed("k", place) == "remote_protocol_error"
    assert other.put("k", {"a": 1}, claim=claim).is_stored
    answer = waiting.answer(to_client.Records)
    assert answer.request_id == request_id
    assert answer.records != [None]


def test_what_expires_in_its_own_put_keeps_its_place_while_it_is_read(layer: Layer, clock: Clock) -> None:
    store = layer.bench.frontend.store
    assert isinstance(store.records.ring, RingWriter)
    reader = Seeker(store.records.ring.announcement)
    assert store.records.ring.readers.attach(reader.entry.reader_id, reader.entry.incarnation)
    held: list[Handle | None] = []

    def read_until_it_expires(name: str, is_kept: bool) -> None:
        held.append(reader.take(name))
        assert held[0] is not None
        wait_until(partial(has_expired, store.records.in_ring.expires_at(held[0])))

    store.puts.on_put = read_until_it_expires
    place = layer.lay("k")
    layer.send("k", place, ttl_s=0.05)
    stored = layer.client.answer(to_client.Stored)
    assert held[0] is not None
    granted = [] if stored.grants is None else stored.grants.places + stored.grants.cold_places
    assert not any(begin < place.offset + place.nbytes and place.offset < end for begin, end in granted)
    assert not is_kept(layer, "k")
    reader.entry.give_back(held[0])
    store.check(clock.now)
    assert store.stats().ring.used_bytes == 0
    reader.close()


def test_what_has_a_note_of_another_key_is_not_copied_into_the_ring(layer: Layer) -> None:
    """Where it would be believed by a successor, and charged to whomever it names."""
    records = layer.bench.frontend.store.records
    copies = NurseryCopies(records.in_ring)
    for key, about, is_copied in (("k", None, True), ("l", "of another", False)):
        layer.close()
        layer.open()
        assert layer.put(key, layer.lay(key, about=about)).is_stored
        handle = present(records.find("", key))
        assert copies.begin(handle) is is_copied
        copies.abort()


def test_one_nursery_too_many_takes_the_place_of_a_drained_one(layer: Layer, clock: Clock) -> None:
    assert layer.put("k", layer.lay("k")).is_stored
    second, third = Layer(layer.bench), Layer(layer.bench)
    second.open()
    assert third.refused() == "service_unavailable"
    layer.client.channel.close()

    def is_drained() -> bool:
        clock.now += CHECK_INTERVAL_S
        return len(layer.bench.frontend.store.nurseries.books.peers) == 1

    layer.bench.pump(is_drained)
    assert is_kept(layer, "k")
    third.open()
    assert not is_kept(layer, "k"), "it made room"
    assert num_files() == 2
    second.close()
    third.close()


def test_a_note_that_names_another_key_is_not_believed(layer: Layer) -> None:
    assert layer.put("k", layer.lay("k", about="other")).is_stored
    handle = present(layer.bench.frontend.store.records.find("", "k"))
    from mmcached.cache.stored_names import newest_first, stored_names
    from mmcached.shm.ring.onlooker import RingOnlooker

    ring = present(layer.bench.frontend.store.announcement)
    with contextlib.closing(RingOnlooker(ring)) as onlooker:
        rows = onlooker.rows()
        assert list(stored_names(onlooker, newest_first(rows), rows)) == []
        assert [one.nursery for one in onlooker.nurseries()] == [handle.nursery]
