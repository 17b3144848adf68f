"""Hits: how their parts are reached and shown; records that came inline, views or tensors of the caller's own."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch

from mmcached.client import Hit, InvalidRequest
from mmcached.client.store.hits import inline_record, reading_of
from mmcached.shm import encode
from mmcached.wire.errors import LocalProtocolError
from mmcached.wire.messages.parts import Inline
from mmcached.wire.sockets.frames import Frame

ARRAY = np.arange(4096, dtype=np.int32)


def mapped(data: Frame) -> memoryview:
    """Return what a large frame is received into."""
    made = mmap.mmap(-1, len(data), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    made[:] = bytes(data)
    return memoryview(made)


@pytest.mark.parametrize("receive", [bytes, bytearray, mapped], ids=["bytes", "bytearray", "mapped"])
def test_an_owned_tensor_may_be_written_whatever_it_came_in(receive: type[bytes]) -> None:
    frames: list[Frame] = [receive(frame) for frame in encode({"a": ARRAY}).frames()]
    place = Inline(0, len(frames))
    view = inline_record(place, frames, reading_of("numpy", True))["a"]
    assert not view.flags.writeable
    owned = inline_record(place, frames, reading_of("numpy", False))["a"]
    owned += 1
    assert np.array_equal(owned, ARRAY + 1)
    is_in_place = np.shares_memory(owned, np.frombuffer(frames[1], np.int32))
    assert is_in_place == (receive is not bytes), "what can be written is not copied"


def test_the_only_tensor_of_a_record_is_found_at_any_depth() -> None:
    assert Hit({"a": {"b": [ARRAY, "text"]}, "n": 1}).tensor() is ARRAY
    with pytest.raises(InvalidRequest, match=r"2 tensors: x, y\.z\[0\]"):
        Hit({"x": ARRAY, "y": {"z": [torch.zeros(2)]}}).tensor()
    with pytest.raises(InvalidRequest, match="0 tensors: none"):
        Hit({"n": 1}).tensor()


def test_a_name_that_a_record_lacks_is_a_key_error_as_of_any_dict() -> None:
    hit = Hit({"x": ARRAY})
    assert hit["x"] is ARRAY
    assert "x" in hit
    assert "y" not in hit
    assert dict(hit.record) == {name: hit[name] for name in hit}
    with pytest.raises(KeyError, match="y"):
        hit["y"]


def test_a_closed_hit_says_so() -> None:
    hit = Hit({"x": ARRAY})
    hit.close()
    assert repr(hit) == "Hit(closed)"
    for use in (lambda: hit["x"], lambda: "x" in hit, lambda: list(hit), hit.tensor):
        with pytest.raises(LocalProtocolError, match="this hit is closed"):
            use()


def test_a_hit_shows_what_its_record_has() -> None:
    record = {"x": torch.zeros(2, 3, dtype=torch.bfloat16), "more": {"y": np.zeros(4, np.uint8)}, "n": 1}
    assert repr(Hit(record)) == "Hit(x: bfloat16 (2, 3), more.y: uint8 (4,); 16 bytes, owned)"
    assert repr(Hit({"n": 1})) == "Hit(no tensors; 0 bytes, owned)"
    assert repr(Hit({"x": [ARRAY] * 20})).endswith("(4096,), and 12 tensors more; 327680 bytes, owned)")
