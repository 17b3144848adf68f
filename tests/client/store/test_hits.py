"""Records that came inline: views that nobody may write, or tensors of the caller's own."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from mmcached.client.store.hits import inline_record, reading_of
from mmcached.shm import encode
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
