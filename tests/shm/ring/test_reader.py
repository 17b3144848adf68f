from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from mmcached.shm import RingReader
from mmcached.wire.errors import LocalProtocolError, StaleHandle
from tests.shm.rings import make_ring, put, reading


@pytest.fixture
def no_gc() -> Iterator[None]:
    """What must be released at once must not wait for a garbage collection."""
    gc.disable()
    yield
    gc.enable()


def test_views_are_read_only() -> None:
    with make_ring() as ring, reading(ring) as reader:
        view = reader.view(put(ring, 100, 3))
        assert view.dtype == np.uint8
        assert view.shape == (100,)
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.flags.writeable = True
        del view


@pytest.mark.parametrize(
    "change",
    [
        {"ring_id": "f" * 32},
        {"epoch": 1},
        {"generation": 2},
        {"slot": 1},
        {"nbytes": 99},
        {"nbytes": 0},
        {"nbytes": 1 << 20},
        {"offset": 64},
        {"offset": 65},
        {"offset": 128},
        {"offset": 1 << 16},
        {"offset": 1 << 40},
        {"offset": -64},
    ],
    ids=str,
)
def test_a_handle_that_is_not_of_this_chunk_is_stale(change: dict[str, Any]) -> None:
    with make_ring() as ring, reading(ring) as reader:
        handle = put(ring, 100)
        with pytest.raises(StaleHandle):
            reader.view(msgspec.structs.replace(handle, **change))


def test_each_view_is_a_holder_of_its_own(no_gc: None) -> None:
    with make_ring() as ring, reading(ring) as reader:
        handle = put(ring, 100)
        gone: list[str] = []
        first, second = reader.view(handle), reader.view(handle)
        weakref.finalize(first, gone.append, "first")
        part = first[10:50]
        derived = part[4:20].view(np.uint32).reshape(2, 2)
        del first, part
        assert gone == []
        del derived
        assert gone == ["first"]
        del second


def test_views_outlive_close_and_nothing_outlives_the_views(no_gc: None) -> None:
    with make_ring() as ring:
        reader = RingReader.open(ring.announcement)
        mapping = weakref.ref(reader.pages)
        view = reader.view(put(ring, 100, 8))
        reader.close()
        reader.close()
        assert view.tolist() == [8] * 100
        with pytest.raises(LocalProtocolError):
            reader.view(put(ring, 1))
        assert mapping() is not None
        del view
        assert mapping() is None


def test_a_reader_that_populates_reads_the_same_and_leaves_no_thread() -> None:
    with make_ring(1 << 22) as ring:
        handle = put(ring, 1 << 20, 7)
        with RingReader.open(ring.announcement, populate=True) as reader:
            assert set(reader.view(handle).tolist()) == {7}
            kept = reader.view(handle)
        assert kept[-1] == 7, "the mapping lives as long as the view"
        del kept
    assert not [thread for thread in threading.enumerate() if thread.name == "populate"]
