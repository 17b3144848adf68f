"""Computes the width of an encoder output's row, for a host that does not measure it.

    hidden size of the language model × (1 + DeepStack levels)

DeepStack models (Qwen3-VL) put the levels of a picture or video beside each other in one row; others have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VISUAL = frozenset({"image", "video", "vision_chunk"})
_LEVELS = "deepstack_visual_indexes"


def embedding_width(hidden_size: int, config: Mapping[str, Any], modality: str) -> int:
    """Return the width of a row.

    Args:
        hidden_size: Size of the language model's input embeddings.
        config: The model's `config.json`.
        modality: Modality of the item, such as "image".
    """
    return hidden_size * (1 + _num_levels(config)) if modality in VISUAL else hidden_size


def _num_levels(config: Mapping[str, Any]) -> int:
    """Return the number of DeepStack levels in a configuration, at any depth; 0 without DeepStack."""
    levels = config.get(_LEVELS)
    if isinstance(levels, list | tuple):
        return len(levels)
    return max((_num_levels(each) for each in config.values() if isinstance(each, Mapping)), default=0)
