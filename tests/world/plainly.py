"""The uncached truth of each weight epoch; models and embeddings are made once.

Of the reference model it is `tests.worker.oracle`. Of a checkpoint it is the worker's own decoder, which computes each
sequence from nothing: see `tests.hosts.transformers.plain_checkpoint`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np

from mmcached.wire.config import ServiceConfig
from mmcached.wire.model_config import ModelConfig
from tests.worker.oracle import IntArray, Item, Oracle
from tests.worker.rings import inline_frames


class PlainModel(Protocol):
    """Computes a sequence from nothing; see `Oracle`."""

    def rows(
        self, token_ids: Sequence[int], replaced: Mapping[int, IntArray], *, num_prompt_tokens: int
    ) -> Mapping[str, np.ndarray]: ...

    def next_tokens(self, hidden_states: np.ndarray) -> list[int]: ...


class PlainReference:
    """The reference model."""

    def __init__(self, config: ModelConfig) -> None:
        self._oracle = oracle_of(config)

    def rows(
        self, token_ids: Sequence[int], replaced: Mapping[int, IntArray], *, num_prompt_tokens: int
    ) -> Mapping[str, np.ndarray]:
        return self._oracle.rows(token_ids, replaced)

    def next_tokens(self, hidden_states: np.ndarray) -> list[int]:
        return self._oracle.next_tokens(hidden_states)


@functools.lru_cache(maxsize=64)
def plain_model(config: ServiceConfig, epoch: int = 0) -> PlainModel:
    """Return the model as it is in a weight epoch: each has weights of its own."""
    if config.model.kind == "hf":
        from tests.hosts.transformers.plain_checkpoint import PlainCheckpoint

        return PlainCheckpoint(config, epoch)
    return PlainReference(model_in(config.model, epoch))


@functools.lru_cache(maxsize=64)
def oracle_of(config: ModelConfig) -> Oracle:
    return Oracle(config)


def model_in(config: ModelConfig, epoch: int) -> ModelConfig:
    return msgspec.structs.replace(config, seed=config.seed + 1000 * epoch)


_EMBEDDINGS: dict[tuple[ModelConfig, bytes], IntArray] = {}


def embeddings_of(config: ModelConfig, epoch: int, item: Item) -> IntArray:
    """Return `(num_embeds, hidden_size)` of the reference encoder; computed once for each item and model."""
    model = model_in(config, epoch)
    name = model, b"".join(inline_frames(item))
    if name not in _EMBEDDINGS:
        _EMBEDDINGS[name] = oracle_of(model).encode(item)
    return _EMBEDDINGS[name]
