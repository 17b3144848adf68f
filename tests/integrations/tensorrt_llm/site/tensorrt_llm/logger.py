"""Stands for TensorRT-LLM's logger."""

from __future__ import annotations

from tensorrt_llm.anything import Quiet

logger = Quiet()
