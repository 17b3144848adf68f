"""Stands for TensorRT-LLM's registry of input processors: items have no metadata of their own."""

from __future__ import annotations

from typing import Any

from tensorrt_llm.anything import any_name as __getattr__  # noqa: F401


def get_multimodal_encoder_item_metadata(multimodal_data: Any) -> None:
    return None
