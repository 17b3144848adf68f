"""Cache for Transformers' layers that lies in the KV pool: one sequence at a time, found by its block table.

    layer's new keys, values ──write──> slots of the piece ──gather──> all keys, values of the sequence so far

Layers with a sliding window keep all their keys and values too; their mask hides what lies before the window.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from mmcached.worker.model.kv_pool import KVPool


class SequencePiece:
    """Piece of a sequence that is being computed: positions `[start, end)`.

    Attributes:
        slots: `(end - start,)` int64, where the piece's keys and values go.
        block_table: `(1, blocks)` int64, of all positions up to `end`.
    """

    def __init__(self) -> None:
        self.start = 0
        self.end = 0
        self.slots = torch.empty(0, dtype=torch.int64)
        self.block_table = torch.empty(1, 0, dtype=torch.int64)


class PoolLayer(CacheLayerMixin):  # type: ignore[misc]  # Transformers is not installed where mypy runs
    """Keys and values of one layer, `(1, heads, positions, head_size)` in Transformers' order."""

    is_sliding = False

    def __init__(self, pool: KVPool, index: int, piece: SequencePiece) -> None:
        super().__init__()
        self._pool = pool
        self._index = index
        self._piece = piece

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: the pool exists."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a piece's keys and values, and return copies of those of all positions up to its end."""
        piece, shape = self._piece, key_states.shape
        rows = [states[0].transpose(0, 1).reshape(shape[2], -1) for states in (key_states, value_states)]
        self._pool.write(self._index, piece.slots, *rows)
        keys, values = (
            gathered[:, : piece.end].view(1, piece.end, shape[1], shape[3]).transpose(1, 2)
            for gathered in self._pool.gather(self._index, piece.block_table)
        )
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._piece.end, 0

    def get_seq_length(self) -> int:
        return self._piece.start

    def get_max_length(self) -> int:
        return -1


class PoolCache(Cache):  # type: ignore[misc]
    """Cache of all layers; `piece` says which one is being computed."""

    def __init__(self, pool: KVPool, num_layers: int) -> None:
        self.piece = SequencePiece()
        super().__init__(layers=[PoolLayer(pool, index, self.piece) for index in range(num_layers)])
