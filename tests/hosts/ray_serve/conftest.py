"""Checkpoints and a store, as for vLLM's own engines: the replicas of Ray Serve LLM have these inside."""

from __future__ import annotations

from tests.hosts.vllm.conftest import checkpoint, service_dir, store

__all__ = ["checkpoint", "service_dir", "store"]
