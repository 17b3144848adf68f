"""Holds what a store is told and what it answers. Values only; those that a step has hundreds of are plain tuples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mmcached.wire.errors import MmcachedError

Report = dict[bytes, dict[str, int]]
"""By block hash: how many rows the block has from its beginning on without a gap, by key; {}: it is gone, or empty."""


class RowChunk(NamedTuple):
    """One request's part of a step: rows of positions `start …`, in the packed order of the step's tensors.

    Attributes:
        block_hashes: hashes of the request's blocks from number `first_block` on: of each block that is full within the
            tokens that are known for good. The first chunk of a request has those of all blocks from 0 up to its own
            last one; later chunks need only have what is new.
    """

    request_id: int
    start: int
    num_rows: int
    first_block: int = 0
    block_hashes: Sequence[bytes] = ()


class RowSpan(NamedTuple):
    """Positions `[first, end)` of one request."""

    request_id: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A part of a write that was not kept.

    Attributes:
        key: "" if nothing of the chunk was kept.
        request_id: None if nothing of the key was kept.
    """

    key: str
    request_id: int | None
    error: MmcachedError


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Counters first, then gauges.

    Attributes:
        written, replayed, dropped: rows of one key that came: kept, there already, without room.
        read, missing: rows of one key that were asked for: handed out, in spans that lack rows.
        evictions: blocks evicted.
        refusals: parts of writes that were not kept.
        copies: copies from a device.
        read_waits, limit_waits: copies that were waited for: by readers, for want of room.
        requests: requests that are known.
        blocks: blocks in use, of `capacity_blocks`; of these `sealed_blocks`, of these `evictable_blocks`.
        block_nbytes: bytes of one block, all keys together.
        pooled_nbytes: bytes of buffers that wait for the next read, on top of the budget.
        in_flight_nbytes: bytes of copies under way; as much is taken on the device.
        pinned_nbytes: bytes of host memory of copies that are under way, or that waits for the next one.
    """

    written: int
    replayed: int
    dropped: int
    read: int
    missing: int
    evictions: int
    refusals: int
    copies: int
    read_waits: int
    limit_waits: int
    requests: int
    blocks: int
    capacity_blocks: int
    sealed_blocks: int
    evictable_blocks: int
    block_nbytes: int
    pooled_nbytes: int
    in_flight_nbytes: int
    pinned_nbytes: int
