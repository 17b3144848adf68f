"""Calls of the model in the mode `aligned`: each sequence alone, piece by piece.

The shapes of all products follow from a prompt's length and a token's position (`pieces`), so results are bit-identical
for any prefix hit, batch, preemption and restart, on one device with one number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from mmcached.cache.checkpoints.language import Language
from mmcached.wire.messages.worker import RunChunk
from mmcached.worker.language.pictures import items_in, levels, masks
from mmcached.worker.language.pieces import pieces
from mmcached.worker.language.pool_cache import PoolCache
from mmcached.worker.model.batch import PackedBatch
from mmcached.worker.model.kv_pool import KVPool


class AlignedPasses:
    """One call of the model for each piece.

    Args:
        text_config: Of the language model.

    Attributes:
        rows_per_product: Hidden states that are multiplied with the vocabulary at once; in larger products bits differ.
    """

    rows_per_product = 1

    def __init__(self, pool: KVPool, language: Language, text_config: Any) -> None:
        self._block_size = pool.block_size
        self._cache = PoolCache(pool, language.num_layers)
        self._chunk_tokens = language.chunk_tokens
        self._keeps_items_whole = language.keeps_items_whole
        self._text_config = text_config

    def of(self, batch: PackedBatch, embeddings: torch.Tensor) -> Iterator[tuple[slice, dict[str, Any]]]:
        """Yield the rows and the arguments of each call; a chunk may continue an earlier chunk of the same batch.

        Args:
            embeddings: `(num_tokens, hidden_size)`.
        """
        for index, (chunk, first) in enumerate(zip(batch.chunks, batch.starts, strict=False)):
            offset = first - chunk.num_computed_tokens
            for start, end in self._pieces(chunk):
                rows = slice(start + offset, end + offset)
                self._set_piece(chunk, start, end, batch.slots[rows])
                items = list(items_in(batch, index, start, end))
                if self._keeps_items_whole:
                    more = masks(items, self._text_config, embeddings[None, rows], self._cache)
                else:
                    more = levels(items, end - start)
                yield rows, {"past_key_values": self._cache, "use_cache": True, **more}

    def _pieces(self, chunk: RunChunk) -> list[tuple[int, int]]:
        start = chunk.num_computed_tokens
        places = [(start + span.position, start + span.position + span.length) for span in chunk.spans]
        return list(
            pieces(
                start,
                start + len(chunk.token_ids),
                num_prompt_tokens=chunk.num_prompt_tokens,
                chunk_tokens=self._chunk_tokens,
                whole=places if self._keeps_items_whole else (),
            )
        )

    def _set_piece(self, chunk: RunChunk, start: int, end: int, slots: torch.Tensor) -> None:
        block_ids = chunk.block_ids[: -(-end // self._block_size)]
        piece = self._cache.piece
        piece.start, piece.end, piece.slots = start, end, slots
        piece.block_table = torch.tensor([block_ids], dtype=torch.int64, device=slots.device)
