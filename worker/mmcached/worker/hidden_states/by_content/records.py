"""Arguments and results of a store. Records that a step has hundreds of are plain tuples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mmcached.wire.errors import MmcachedError

Report = dict[bytes, dict[str, int]]
"""Block hash -> key -> number of rows before the first gap; {} if the block was evicted, or is empty."""


class RowChunk(NamedTuple):
    """One request's part of a step: rows of positions `start …`, in the packed order of the step's tensors.

    Attributes:
        block_hashes: hashes of the request's blocks from number `first_block` on, for blocks that are full of final
            tokens. The first chunk of a request needs those of all blocks from 0 to its own last block; later chunks
            only new ones.
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
class RefusedRows:
    """Part of a write that was not stored: all of a chunk if `key` is "", all of a key if `request_id` is None."""

    key: str
    request_id: int | None
    error: MmcachedError


@dataclass(frozen=True, slots=True)
class RowStoreStats:
    """Counters (up to `limit_waits`) and gauges of a store.

    Attributes:
        written, replayed, dropped: rows of one key that were stored, there before, without space.
        read, missing: rows of one key that were read, in spans with missing rows.
        refusals: parts of writes that were not stored.
        copies: copies from a device.
        read_waits, limit_waits: copies that were waited for: by readers, for lack of space.
        requests: known requests.
        blocks: blocks in use, of `capacity_blocks`; `sealed_blocks` of these, `evictable_blocks` of the latter.
        block_nbytes: bytes of one block, all keys together.
        pooled_nbytes: bytes of buffers kept for the next read, in addition to the budget.
        in_flight_nbytes: bytes of pending copies; as many are in use on the device.
        pinned_nbytes: bytes of host memory of pending copies, or kept for the next copy.
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
