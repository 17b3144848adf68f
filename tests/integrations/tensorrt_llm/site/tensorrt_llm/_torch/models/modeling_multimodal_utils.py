"""Encodes the requests of a step that have no rows yet in one call, and returns the rows of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensorrt_llm.anything import any_name as __getattr__  # noqa: F401


def get_multimodal_embeddings(
    encoder_forward_fn: Callable[[list[Any]], torch.Tensor], multimodal_params: list[Any]
) -> list[torch.Tensor]:
    missing = [param for param in multimodal_params if param.multimodal_data.get("multimodal_embedding") is None]
    if missing:
        lengths = [sum(param.multimodal_data["multimodal_embedding_lengths"]) for param in missing]
        encoded = torch.split(encoder_forward_fn(missing), lengths, dim=0)
        for param, rows in zip(missing, encoded, strict=True):
            param.multimodal_data["multimodal_embedding"] = rows
    return [torch.cat([param.multimodal_data["multimodal_embedding"] for param in multimodal_params])]
