"""The uncached truth, fast enough to be asked thousands of times: the oracle's sums, all positions of a layer at once.

Knows nothing of caches, blocks or batches. The same numbers as `tests.worker.oracle.Oracle`, which a test compares.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from mmcached.wire.model_config import ModelConfig
from mmcached.wire.vocabulary import BEGIN_TOKEN_ID, END_TOKEN_ID, VOCABULARY_SIZE
from tests.worker.oracle import IntArray, Item, Oracle, P
from tests.worker.rings import inline_frames


class PlainModel(Oracle):
    """Whole sequences; weights are drawn once."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self._weights: dict[str, IntArray] = {}
        self._of_layer: list[IntArray] = []

    def rows(self, token_ids: Sequence[int], replaced: Mapping[int, IntArray]) -> dict[str, IntArray]:
        """Return of each key that the model gives the rows of all tokens, `(num_tokens, hidden_size)`."""
        self._of_layer.clear()
        last = self.hidden_states(token_ids, replaced)
        return dict(zip(self.config.row_keys, [last, *self._of_layer], strict=False))

    def next_tokens(self, hidden_states: IntArray) -> list[int]:
        """Return what each of `(n, hidden_size)` hidden states is followed by."""
        logits = hidden_states @ self._draw("decoder.vocabulary", self.config.hidden_size, VOCABULARY_SIZE) % P
        logits[:, BEGIN_TOKEN_ID] = -1
        best: list[int] = logits[:, : END_TOKEN_ID + 1].argmax(axis=1).tolist()
        return best

    def _draw(self, name: str, *shape: int) -> IntArray:
        found = self._weights.get(name)
        if found is None:
            found = self._weights[name] = super()._draw(name, *shape)
        return found

    def _layer(self, x: IntArray, layer: int) -> IntArray:
        n, hidden_size = x.shape
        heads = self.config.num_heads

        def weight(part: str) -> IntArray:
            return self._draw(f"decoder.{layer}.{part}", hidden_size, hidden_size)

        def by_head(part: str) -> IntArray:
            projected: IntArray = (x @ weight(part) % P).reshape(n, heads, -1).transpose(1, 0, 2)
            return projected

        lag = np.arange(n)[:, None] - np.arange(n)
        slopes = np.arange(1, heads + 1)[:, None, None]
        scores = by_head("query") @ by_head("key").transpose(0, 2, 1) + slopes * lag
        mixed = np.where(lag >= 0, 1 + scores % 13, 0) @ by_head("value")
        x = (x + (mixed.transpose(1, 0, 2).reshape(n, hidden_size) % P) @ weight("output")) % P
        inner = (x @ weight("up") % P) ** 2 % P
        x = (x + inner @ weight("down")) % P
        self._of_layer.append(x)
        return x


@functools.lru_cache(maxsize=64)
def plain_model(config: ModelConfig, epoch: int = 0) -> PlainModel:
    """Return the model as it is in a weight epoch: each has weights of its own."""
    return PlainModel(model_in(config, epoch))


def model_in(config: ModelConfig, epoch: int) -> ModelConfig:
    return msgspec.structs.replace(config, seed=config.seed + 1000 * epoch)


_EMBEDDINGS: dict[tuple[ModelConfig, bytes], IntArray] = {}


def embeddings_of(model: PlainModel, item: Item) -> IntArray:
    """Return `(num_embeds, hidden_size)`; computed once for each item and model."""
    name = model.config, b"".join(inline_frames(item))
    if name not in _EMBEDDINGS:
        _EMBEDDINGS[name] = model.encode(item)
    return _EMBEDDINGS[name]
