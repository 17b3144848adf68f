"""What the store of a frontend says of clips: put by a service, or by anybody of the same tenant."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from mmcached.cache.clip_keys import clip_record
from mmcached.frontend.store.record_store import RecordStore
from mmcached.gateway.processing.media import Slice
from mmcached.gateway.requests.clip_records import ClipRecords
from mmcached.gateway.requests.waits import Waits
from mmcached.shm.store import codec
from mmcached.wire.config import ServiceConfig
from tests.shm.rings import make_ring

EPOCH = 1000
GOOD = ["b" * 64, 3, 0.0, 0.5]


@pytest.fixture
def store() -> Iterator[RecordStore]:
    with RecordStore(first_epoch=EPOCH) as made:
        made.adopt(make_ring(1 << 16, max_object_bytes=5000, has_index=True))
        yield made


def test_what_was_put_is_found(store: RecordStore) -> None:
    records = ClipRecords(store, ServiceConfig(), Waits())
    slices = [Slice("b" * 64, 3, 0.0, 0.5), Slice("c" * 64, 1, 0.5, 1.0)]
    records.put("tenant", "k" * 64, slices, epoch=EPOCH)
    records.put("tenant", "k" * 64, slices, epoch=EPOCH)
    records.put_slice("tenant", "slice/1", slices[1], epoch=EPOCH)
    records.put_slice("tenant", "slice/2", slices[1], epoch=EPOCH - 1)
    assert records.slices("tenant", "k" * 64) == slices
    assert records.slices("another", "k" * 64) == []
    assert [records.slice("tenant", f"slice/{number}") for number in (1, 2)] == [slices[1], None]


@pytest.mark.parametrize(
    "wrong",
    [
        ["b" * 63, *GOOD[1:]],
        [GOOD[0], 0, 0.0, 0.5],
        [GOOD[0], 1 << 40, 0.0, 0.5],
        [*GOOD[:3], math.nan],
        [*GOOD[:3], math.inf],
        [*GOOD[:3], 1e300],
        GOOD[:3],
    ],
    ids=repr,
)
def test_what_is_none_of_ours_counts_as_missing(store: RecordStore, wrong: list[Any]) -> None:
    """What is said of a slice reaches a client, whose reader takes no number of seconds that cannot be."""
    records = ClipRecords(store, ServiceConfig(), Waits())
    assert store.put("", clip_record("k"), codec.encode({"slices": [GOOD, wrong]}), epoch=EPOCH) is None
    assert store.put("", "slice/1", codec.encode({"slice": [wrong]}), epoch=EPOCH) is None
    assert records.slices("", "k") == []
    assert records.slice("", "slice/1") is None
