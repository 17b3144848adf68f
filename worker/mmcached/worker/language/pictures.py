"""Arguments of Transformers' language models for the pictures in a piece, besides their embeddings.

Qwen3-VL    levels: rows that are added to a picture's tokens after each of the first layers
Gemma 3     masks: the tokens of a picture attend to each other both ways
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from transformers.models.gemma3.modeling_gemma3 import create_masks_for_vision_model

from mmcached.worker.language.pool_cache import PoolCache
from mmcached.worker.model.batch import PackedBatch

_LEVEL = "deepstack_{}"


class PieceItem(NamedTuple):
    """Part of an item in a piece: rows `[begin, end)` of the piece have its embeddings from `first` on.

    Attributes:
        outputs: The item's encoder outputs, whole.
    """

    begin: int
    end: int
    first: int
    outputs: Mapping[str, torch.Tensor]


def items_in(batch: PackedBatch, index: int, start: int, end: int) -> Iterator[PieceItem]:
    """Yield the items of the positions `[start, end)` of chunk `index`."""
    chunk = batch.chunks[index]
    for span in chunk.spans:
        first = chunk.num_computed_tokens + span.position
        begin, stop = max(first, start), min(first + span.length, end)
        if begin < stop:
            yield PieceItem(begin - start, stop - start, span.start + begin - first, batch.items[span.key])


def levels(items: Sequence[PieceItem], num_rows: int) -> dict[str, Any]:
    """Return the arguments for a piece's levels; none without items or levels."""
    if not items or _LEVEL.format(0) not in items[0].outputs:
        return {}
    names = [name for level in range(len(items[0].outputs)) if (name := _LEVEL.format(level)) in items[0].outputs]
    found = [torch.cat([each.outputs[name][each.first :][: each.end - each.begin] for each in items]) for name in names]
    places = torch.zeros(1, num_rows, dtype=torch.bool, device=found[0].device)
    for each in items:
        places[0, each.begin : each.end] = True
    return {"visual_pos_masks": places, "deepstack_visual_embeds": found}


def masks(items: Sequence[PieceItem], config: Any, embeddings: torch.Tensor, cache: PoolCache) -> dict[str, Any]:
    """Return the masks of a piece in which each item attends to all of itself; none without items.

    Args:
        config: Of the language model.
        embeddings: `(1, rows, hidden_size)` of the piece.
        cache: Set to the piece.
    """
    if not items:
        return {}
    numbers = torch.full((1, cache.piece.end), -1, device=embeddings.device)
    for number, each in enumerate(items):
        numbers[0, cache.piece.start + each.begin : cache.piece.start + each.end] = number
    found = create_masks_for_vision_model(
        config,
        embeddings,
        attention_mask=None,
        past_key_values=cache,
        position_ids=None,
        block_sequence_ids=numbers,
    )
    return {"attention_mask": found}
