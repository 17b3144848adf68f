"""Items of a plan: in place from a real ring, from frames, and what is said when they are not there."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from mmcached.wire.errors import CacheMiss, RemoteProtocolError, StaleHandle
from mmcached.wire.messages.parts import Inline
from mmcached.worker.encoders.encoder import tensor_of
from mmcached.worker.encoders.reference import grid_of
from mmcached.worker.payloads import PayloadReader
from tests.worker.oracle import random_image
from tests.worker.rings import engine_ring, inline_frames, is_inside, record_of

IMAGE = random_image(np.random.default_rng(0), (2, 3), 2)


def test_an_item_in_the_ring_is_read_in_place_until_its_last_view_dies() -> None:
    released: list[str] = []
    with engine_ring() as engine, engine.payloads() as payloads:
        handle, _ = engine.put("a", record_of(IMAGE))
        record = payloads.read(handle, (), mm_hash="a", on_release=lambda: released.append("a"))
        pixels = tensor_of(record, "pixel_values")
        assert grid_of(record) == IMAGE.grid
        assert np.array_equal(pixels.numpy(), IMAGE.pixel_values)
        assert is_inside(engine.ring, pixels)
        row = pixels[1]
        del record, pixels
        gc.collect()
        assert released == []
        del row
        assert released == ["a"]
        engine.entry.give_back(handle)
        engine.ring.check_integrity()


def test_an_inline_item_is_read_from_its_frames() -> None:
    frames = [b"another", *inline_frames(IMAGE)]
    record = PayloadReader(None).read(Inline(1, len(frames) - 1), frames, mm_hash="a")
    pixels = tensor_of(record, "pixel_values")
    assert grid_of(record) == IMAGE.grid
    assert np.array_equal(pixels.numpy(), IMAGE.pixel_values)


def test_what_is_not_there_is_a_miss() -> None:
    with engine_ring() as engine, engine.payloads() as payloads:
        handle, _ = engine.put("a", record_of(IMAGE))
        for reader, payload in ((payloads, None), (PayloadReader(None), None), (PayloadReader(None), handle)):
            with pytest.raises(CacheMiss) as caught:
                reader.read(payload, (), mm_hash="a")
            assert caught.value.mm_hashes == ["a"]
        engine.entry.give_back(handle)


def test_a_handle_of_another_ring_is_stale() -> None:
    with engine_ring() as engine, engine_ring() as other, engine.payloads() as payloads:
        handle, _ = other.put("a", record_of(IMAGE))
        with pytest.raises(StaleHandle):
            payloads.read(handle, (), mm_hash="a")


def test_frames_that_are_not_there_or_no_record_are_the_senders_fault() -> None:
    reader, frames = PayloadReader(None), inline_frames(IMAGE)
    for payload, given in ((Inline(0, 9), frames), (Inline(0, 1), [b"garbage"]), (Inline(0, 0), frames)):
        with pytest.raises(RemoteProtocolError):
            reader.read(payload, given, mm_hash="a")
