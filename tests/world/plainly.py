"""The uncached truth of each weight epoch, from `tests.worker.oracle`; models and embeddings are made once."""

from __future__ import annotations

import functools

import msgspec

from mmcached.wire.model_config import ModelConfig
from tests.worker.oracle import IntArray, Item, Oracle
from tests.worker.rings import inline_frames


@functools.lru_cache(maxsize=64)
def plain_model(config: ModelConfig, epoch: int = 0) -> Oracle:
    """Return the model as it is in a weight epoch: each has weights of its own."""
    return Oracle(model_in(config, epoch))


def model_in(config: ModelConfig, epoch: int) -> ModelConfig:
    return msgspec.structs.replace(config, seed=config.seed + 1000 * epoch)


_EMBEDDINGS: dict[tuple[ModelConfig, bytes], IntArray] = {}


def embeddings_of(model: Oracle, item: Item) -> IntArray:
    """Return `(num_embeds, hidden_size)`; computed once for each item and model."""
    name = model.config, b"".join(inline_frames(item))
    if name not in _EMBEDDINGS:
        _EMBEDDINGS[name] = model.encode(item)
    return _EMBEDDINGS[name]
