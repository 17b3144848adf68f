"""Stands for a module of TensorRT-LLM of which nothing is called."""

from __future__ import annotations

from tensorrt_llm.anything import any_name as __getattr__  # noqa: F401
