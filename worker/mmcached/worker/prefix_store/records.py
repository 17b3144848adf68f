"""What a store is told and what it answers. Values only; those that a step has hundreds of are plain tuples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mmcached.wire.errors import MmcachedError

Report = dict[bytes, dict[str, int]]
"""By name of a block: how many rows it has from its beginning on without a gap, by key; {}: it is gone, or empty."""


class RowChunk(NamedTuple):
    """One request's part of a step: rows of positions `start …`, in the packed order of the step's tensors.

    Attributes:
        names: of the request's blocks from number `first_block` on, as far as they are known: of each block that is
            full within the tokens that are known for good. The first chunk of a request names all blocks from 0 up to
            its own last one, so that the prefix behind which it stands is found; later ones need only name what is
            new. To name a block again changes nothing.
    """

    request_id: int
    start: int
    num_rows: int
    first_block: int = 0
    names: Sequence[bytes] = ()


class RowSpan(NamedTuple):
    """Positions `[first, end)` of one request."""

    request_id: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """What was not kept of a write, and why.

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
        written, replayed, dropped: rows of one key that came: kept, there already, without a place.
        read, missing: rows of one key that were asked for: handed out, in spans that lack rows.
        evictions: blocks.
        refusals: see `Refusal`.
        copies: begun, of rows that were on a device or deferred.
        read_waits, limit_waits: copies that were waited for: by readers, for want of room.
        requests: that hold blocks, or that are known at all.
        blocks: in use, of `capacity_blocks`; of these `sealed_blocks`, of these `evictable_blocks` held by nobody.
        block_nbytes: one block, all keys together.
        value_nbytes: what is kept whole.
        pooled_nbytes: buffers that wait for the next read, on top of the budgets.
        deferred_nbytes: rows that are kept on their device.
        in_flight_nbytes: copies under way; as much is taken on the device.
        pinned_nbytes: host memory of copies that are under way, or that waits for the next one.
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
    value_nbytes: int
    pooled_nbytes: int
    deferred_nbytes: int
    in_flight_nbytes: int
    pinned_nbytes: int
