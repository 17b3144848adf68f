"""Positions of three axes, as the rotary embedding of Qwen-VL takes them: time, height and width.

    token     a  b  [picture of 2 rows, 3 columns]  c
    time      0  1   2  2  2  2  2  2                5
    height    0  1   2  2  2  3  3  3                5
    width     0  1   2  3  4  2  3  4                5
    follower  1  2   5  5  5  5  5  5                6

A token of text has one number for all axes, and the next number depends on the sizes of all pictures before. So the
number that follows a token is kept by its KV slot, and found wherever its keys and values are found. It depends on the
prompt up to that token alone, as they do.
"""

from __future__ import annotations

from typing import Any

import torch

from mmcached.cache.store_keys import GRID
from mmcached.wire.messages.worker import RunChunk
from mmcached.worker.model.batch import PackedBatch
from mmcached.worker.model.kv_pool import KVPool


class GridPositions:
    """Positions of a model with `get_vision_position_ids`, and the follower of each KV slot's token."""

    def __init__(self, model: Any, merged_side: int, pool: KVPool) -> None:
        self._model = model
        self._merged_side = merged_side
        self._block_size = pool.block_size
        self._followers = torch.zeros(pool.num_blocks * pool.block_size, dtype=torch.int64)

    @classmethod
    def of(cls, model: Any, pool: KVPool) -> GridPositions | None:
        """Return the positions of a model with a language model of Transformers; None if they have one axis."""
        if not hasattr(model.model, "get_vision_position_ids"):
            return None
        return cls(model.model, model.config.vision_config.spatial_merge_size, pool)

    def place(self, batch: PackedBatch) -> torch.Tensor:
        """Return the positions of all rows of a batch, `(3, num_tokens)` int64 on its device; keep their followers."""
        positions = torch.empty(3, len(batch.slots_cpu), dtype=torch.int64)
        for chunk, start, end in zip(batch.chunks, batch.starts, batch.starts[1:], strict=False):
            followers = self._place_chunk(chunk, batch, positions[:, start:end])
            self._followers[batch.slots_cpu[start:end]] = followers
        return positions.to(batch.positions.device)

    def _place_chunk(self, chunk: RunChunk, batch: PackedBatch, positions: torch.Tensor) -> torch.Tensor:
        """Write a chunk's positions, and return the follower of each token."""
        followers = torch.empty(positions.shape[1], dtype=torch.int64)
        done, number = 0, self._follower(chunk, chunk.num_computed_tokens - 1)
        for span in chunk.spans:
            self._place_text(number, positions[:, done : span.position], followers[done : span.position])
            if span.start:  # an earlier chunk has begun the item
                number = self._follower(chunk, chunk.num_computed_tokens - span.start - 1)
            else:
                number += span.position - done
            done = span.position + span.length
            grid = batch.items[span.key][GRID][0].cpu()
            item = self._model.get_vision_position_ids(number, grid, 1, self._merged_side)
            positions[:, span.position : done] = item[:, span.start : span.start + span.length]
            number += int(grid[1:].max()) // self._merged_side
            followers[span.position : done] = number
        self._place_text(number, positions[:, done:], followers[done:])
        return followers

    def _follower(self, chunk: RunChunk, position: int) -> int:
        """Return the number that follows a computed token of a chunk's request; 0 for the one before the first."""
        if position < 0:
            return 0
        block, offset = divmod(position, self._block_size)
        return int(self._followers[chunk.block_ids[block] * self._block_size + offset])

    @staticmethod
    def _place_text(number: int, positions: torch.Tensor, followers: torch.Tensor) -> None:
        positions[:] = torch.arange(number, number + len(followers))
        followers[:] = positions[0] + 1
