"""Pass of the mode `packed`: all rows of a step at once, by an attention function of Transformers over the KV pool.

    all rows ──one matrix product──> queries, keys, values      keys, values ──write──> slots
    queries, by group ──scaled_dot_product_attention──> keys, values of the group's block tables

A group is one chunk of several tokens, or several chunks of one token with padded contexts (`worker.model.batch`).
Transformers' own attention for packed sequences, `cache=PagedAttentionCache`, masks one product of all rows with all
contexts on a CPU, and its cache cannot lie in the KV pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from mmcached.worker.language.pictures import PieceItem, items_in, levels
from mmcached.worker.model.batch import PackedBatch
from mmcached.worker.model.kv_pool import KVPool

NAME = "mmcached_packed"


class PackedAttention:
    """Attention of one step's rows, layer by layer."""

    def __init__(self, batch: PackedBatch, pool: KVPool) -> None:
        self._batch = batch
        self._pool = pool
        self._masks: dict[tuple[int, int | None], torch.Tensor] = {}

    def attend(
        self,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        scale: float | None,
        window: int | None,
    ) -> torch.Tensor:
        """Write a layer's keys and values into the pool; return what all rows read.

        Args:
            queries: `(heads, rows, head_size)`.
            keys, values: `(key_heads, rows, head_size)`.
            scale: Factor of the products of queries and keys; None for `head_size ** -0.5`.
            window: Number of positions, up to a row's own, that it reads; None for all.

        Returns:
            `(rows, heads, head_size)`.
        """
        num_keys, num_rows, size = keys.shape
        written = (states.transpose(0, 1).reshape(num_rows, -1) for states in (keys, values))
        self._pool.write(layer, self._batch.slots, *written)
        found = queries.new_empty(num_rows, queries.shape[0], size)
        for number, group in enumerate(self._batch.groups):
            batch, num_each = group.positions.shape
            context = group.block_table.shape[1] * self._pool.block_size
            keys_read, values_read = (
                states.view(batch, context, num_keys, size).transpose(1, 2)
                for states in self._pool.gather(layer, group.block_table)
            )
            # the heads that share keys lie side by side, as if they were rows: keys are not repeated
            asked = queries[:, group.rows].view(num_keys, -1, batch, num_each, size)
            num_shared = asked.shape[1]
            asked = asked.permute(2, 0, 1, 3, 4).reshape(batch, num_keys, num_shared * num_each, size)
            mask = self._mask(number, num_shared=num_shared, window=window, dtype=queries.dtype)
            read = scaled_dot_product_attention(asked, keys_read, values_read, attn_mask=mask, scale=scale)
            read = read.view(batch, num_keys, num_shared, num_each, size).permute(0, 3, 1, 2, 4)
            found[group.rows] = read.reshape(batch * num_each, -1, size)
        return found

    def _mask(self, number: int, *, num_shared: int, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        """Return the mask of a group, the same for all layers: `(batch, 1, num_shared * n, context)`, 0 or -inf.

        Numbers, because the function would convert a boolean mask in each layer.
        """
        if (number, window) not in self._masks:
            group = self._batch.groups[number]
            context = group.block_table.shape[1] * self._pool.block_size
            places = torch.arange(context, device=group.positions.device)
            own = group.positions[..., None]
            hidden = places > own
            if window is not None:
                hidden |= places <= own - window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)
            self._masks[number, window] = mask.repeat(1, num_shared, 1)[:, None]
        return self._masks[number, window]


class PackedPasses:
    """One call of the model for a step; members as those of `AlignedPasses`."""

    rows_per_product = 1 << 16

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool

    def of(self, batch: PackedBatch, embeddings: torch.Tensor) -> Iterator[tuple[slice, dict[str, Any]]]:
        items: list[PieceItem] = []
        for index, (chunk, first) in enumerate(zip(batch.chunks, batch.starts, strict=False)):
            start = chunk.num_computed_tokens
            found = items_in(batch, index, start, start + len(chunk.token_ids))
            items += [item._replace(begin=first + item.begin, end=first + item.end) for item in found]
        more = levels(items, len(embeddings))
        yield slice(0, len(embeddings)), {"cache": PackedAttention(batch, self._pool), "use_cache": False, **more}


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    cache: PackedAttention,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Return `(1, rows, heads, head_size)`; see Transformers' attention interface."""
    if softcap is not None:
        raise ValueError("softcap: attention with capped scores is not known")
    layer: Any = module.layer_idx
    return cache.attend(layer, query[0], key[0], value[0], scale=scaling, window=sliding_window)[None], None


AttentionInterface.register(NAME, _attention)
