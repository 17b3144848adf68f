"""Checks that what a worker holds agrees with its tables."""

from __future__ import annotations

from collections import Counter

import numpy as np

from mmcached.worker.encoder_cache import EncoderCache
from mmcached.worker.hidden_states.by_content.request_blocks import ABSENT
from mmcached.worker.hidden_states.by_content.store import TensorPrefixStore
from mmcached.worker.hidden_states.pending_rows import PendingRows
from mmcached.worker.model.kv_pool import KVPool
from mmcached.worker.steps.runner import ModelRunner


def check_runner(runner: ModelRunner) -> None:
    check_kv_pool(runner._pool)
    check_encoder_cache(runner.encoder_cache)
    if runner.prefix_store is not None:
        check_prefix_store(runner.prefix_store)


def check_kv_pool(pool: KVPool) -> None:
    """Check that nothing was written to the null block."""
    assert not pool._computed[: pool.block_size].any()
    assert not pool._data[:, :, 0].any()


def check_encoder_cache(cache: EncoderCache) -> None:
    """Check the counted bytes, and that no tensor is a view into a larger storage."""
    tensors = [tensor for record in cache._records.values() for tensor in record.values()]
    assert sum(tensor.nbytes for tensor in tensors) == cache._nbytes
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in tensors)


def check_prefix_store(store: TensorPrefixStore) -> None:
    """Check that each block is free, evictable or held, as often as requests hold it, under its own hash."""
    pool, chains = store._requests._pool, store._requests.of_request.values()
    held = Counter(block_id for chain in chains for block_id in chain.block_ids if block_id != ABSENT)
    free, evictable = set(pool._free), set(pool._evictable)
    for block_id, num_holders in enumerate(pool._refs):
        block_hash = pool.hashes[block_id]
        assert num_holders == held[block_id], f"block {block_id}"
        assert (block_id in free) == (not num_holders and block_hash is None), f"block {block_id}"
        assert (block_id in evictable) == (not num_holders and block_hash is not None), f"block {block_id}"
        assert bool(pool.is_sealed[block_id]) == (block_hash is not None), f"block {block_id}"
        assert block_hash is None or pool._block_of[block_hash] == block_id, f"block {block_id}"
    assert len(free) == len(pool._free)
    assert len(pool._block_of) == sum(each is not None for each in pool.hashes)
    assert pool.num_used <= pool.capacity
    for chain in chains:
        num_held = sum(block_id != ABSENT for block_id in chain.block_ids)
        assert ABSENT not in chain.block_ids[:num_held], "a request holds a block without the one before"
        for number, block_id in enumerate(chain.block_ids[:num_held]):
            assert pool.hashes[block_id] == (chain.hashes[number] if number < len(chain.hashes) else None)
    check_pending(store._pending)


def check_pending(rows: PendingRows) -> None:
    """Check that every written row is in an arena or a copy under way, and that bytes in flight are counted."""
    for arena, sources in rows._of_arena.items():
        pending = np.flatnonzero(sources.source)
        parts = [(flight, part) for flight in rows._flights for part in flight.parts if part.sources is sources]
        known = [sources.of(flight.number, part.indexes) for flight, part in parts]
        assert arena.are_written(pending).all()
        assert sum(map(len, known)) == len(pending)
        assert sources.noted is None
    assert rows.in_flight_nbytes == sum(flight.copy.nbytes for flight in rows._flights)
    assert rows.in_flight_nbytes <= rows.byte_limit or len(rows._flights) == 1
