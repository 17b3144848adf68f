"""Items of a plan: in place from a real ring, from frames, and what is said when they are not there."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from mmcached.wire.errors import CacheMiss, RemoteProtocolError
from mmcached.wire.messages.parts import Inline, StoredItem
from mmcached.worker.encoders.encoder import tensor_of
from mmcached.worker.encoders.reference import grid_of
from mmcached.worker.payloads import StoreContact
from tests.worker.oracle import random_image
from tests.worker.rings import inline_frames, is_inside, item_store, record_of

IMAGE = random_image(np.random.default_rng(0), (2, 3), 2)


def test_an_item_in_the_store_is_read_in_place_under_a_lease_that_ends_with_its_last_view() -> None:
    with item_store() as store:
        record = store.contact.read(store.put("a", record_of(IMAGE)), (), mm_hash="a")
        pixels = tensor_of(record, "pixel_values")
        assert grid_of(record) == IMAGE.grid
        assert np.array_equal(pixels.numpy(), IMAGE.pixel_values)
        assert is_inside(store.ring, pixels)
        row = pixels[1]
        del record, pixels
        gc.collect()
        assert store.num_leases == 1
        del row
        assert store.num_leases == 0


def test_views_that_only_a_cycle_holds_are_ended() -> None:
    with item_store() as store:
        gc.disable()
        try:
            cycle: list[object] = [store.contact.read(store.put("a", record_of(IMAGE)), (), mm_hash="a")]
            cycle.append(cycle)
            del cycle
            assert store.num_leases == 1
            store.contact.end_views(is_over=True)
            assert store.num_leases == 0
        finally:
            gc.enable()


def test_an_inline_item_is_read_from_its_frames() -> None:
    frames = [b"another", *inline_frames(IMAGE)]
    record = StoreContact(None).read(Inline(1, len(frames) - 1), frames, mm_hash="a")
    pixels = tensor_of(record, "pixel_values")
    assert grid_of(record) == IMAGE.grid
    assert np.array_equal(pixels.numpy(), IMAGE.pixel_values)


def test_what_is_not_there_is_a_miss() -> None:
    with item_store() as store, item_store() as other:
        gone, elsewhere = store.put("a", record_of(IMAGE)), other.put("a", record_of(IMAGE))
        for contact, payload in (
            (StoreContact(None), gone),
            (store.contact, elsewhere),
            (store.contact, StoredItem(gone.token + "0")),
        ):
            with pytest.raises(CacheMiss) as caught:
                contact.read(payload, (), mm_hash="a")
            assert caught.value.mm_hashes == ["a"]
        store.store.discard("a")
        with pytest.raises(CacheMiss):
            store.contact.read(gone, (), mm_hash="a")


def test_frames_that_are_not_there_or_no_record_are_the_senders_fault() -> None:
    reader, frames = StoreContact(None), inline_frames(IMAGE)
    for payload, given in ((Inline(0, 9), frames), (Inline(0, 1), [b"garbage"]), (Inline(0, 0), frames)):
        with pytest.raises(RemoteProtocolError):
            reader.read(payload, given, mm_hash="a")
