"""The reference model once more, the plain way: one sequence, no paging, no caches, numpy's int64.

Shares the weights with the real model and nothing else: no float, no packing, no tiles. Everything in it may be slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mmcached.wire.config import ModelConfig
from mmcached.wire.vocabulary import END_TOKEN_ID, VOCABULARY_SIZE
from mmcached.worker.model.arithmetic import draw

P = 4093
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Image:
    """What preprocessing makes of an image."""

    pixel_values: npt.NDArray[np.uint8]
    grid: tuple[int, int]


def random_image(rng: np.random.Generator, grid: tuple[int, int], patch_size: int) -> Image:
    shape = (grid[0] * grid[1], 3 * patch_size**2)
    return Image(rng.integers(0, 256, shape, dtype=np.uint8), grid)


class Oracle:
    """Computes a whole sequence from nothing, each time."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    def _draw(self, name: str, *shape: int) -> IntArray:
        return draw(self.config.seed, name, shape).numpy().astype(np.int64)

    def encode(self, image: Image) -> IntArray:
        """`(num_patches, hidden_size)` embeddings."""
        config, width = self.config, self.config.encoder_width
        weights = self._draw("encoder.input", image.pixel_values.shape[1], width)
        row_weights, column_weights = self._draw("encoder.row", width), self._draw("encoder.column", width)
        x = image.pixel_values.astype(np.int64) @ weights
        for index in range(len(x)):
            row, column = divmod(index, image.grid[1])
            x[index] += row * row_weights + column * column_weights
        x %= P
        for layer in range(config.encoder_layers):
            query, key, value = (
                x @ self._draw(f"encoder.{layer}.{part}", width, width) % P for part in ("query", "key", "value")
            )
            attention = 1 + (query @ key.T) % 13
            x = (x + (attention @ value % P) @ self._draw(f"encoder.{layer}.output", width, width)) % P
            inner = (x @ self._draw(f"encoder.{layer}.up", width, width) % P) ** 2 % P
            x = (x + inner @ self._draw(f"encoder.{layer}.down", width, width)) % P
        return x @ self._draw("encoder.output", width, config.hidden_size) % P

    def hidden_states(self, token_ids: Sequence[int], replaced: Mapping[int, IntArray] | None = None) -> IntArray:
        """`(num_tokens, hidden_size)`; `replaced` maps positions to what stands there instead of the token."""
        config, hidden_size = self.config, self.config.hidden_size
        x = self._draw("decoder.tokens", VOCABULARY_SIZE, hidden_size)[list(token_ids)]
        for position, row in (replaced or {}).items():
            x[position] = row
        place = self._draw("decoder.place", 3, hidden_size)
        for i in range(len(x)):
            x[i] = (x[i] + i * place[0] + (i * i % P) * place[1] + (i // P) * place[2]) % P
        for layer in range(config.num_layers):
            x = self._layer(x, layer)
        return x

    def _layer(self, x: IntArray, layer: int) -> IntArray:
        hidden_size, heads = self.config.hidden_size, self.config.num_heads
        head_size = hidden_size // heads

        def weight(part: str) -> IntArray:
            return self._draw(f"decoder.{layer}.{part}", hidden_size, hidden_size)

        query, key, value = (x @ weight(part) % P for part in ("query", "key", "value"))
        mixed = np.zeros_like(x)
        for head in range(heads):
            part = slice(head * head_size, (head + 1) * head_size)
            for i in range(len(x)):
                for j in range(i + 1):
                    score = int(query[i, part] @ key[j, part]) + (head + 1) * (i - j)
                    mixed[i, part] += (1 + score % 13) * value[j, part]
        x = (x + (mixed % P) @ weight("output")) % P
        inner = (x @ weight("up") % P) ** 2 % P
        return (x + inner @ weight("down")) % P

    def next_token(self, hidden_state: IntArray) -> int:
        logits = hidden_state @ self._draw("decoder.vocabulary", self.config.hidden_size, VOCABULARY_SIZE) % P
        best = -1
        for token in range(END_TOKEN_ID + 1):
            if token != 256 and (best < 0 or logits[token] > logits[best]):
                best = token
        return best

    def reference_generate(
        self, prompt: Sequence[int], replaced: Mapping[int, IntArray] | None, max_tokens: int
    ) -> tuple[list[int], IntArray]:
        """Greedy continuation by whole recomputation, and the hidden states of all tokens but the last generated."""
        tokens: list[int] = []
        while True:
            hidden_states = self.hidden_states([*prompt, *tokens], replaced)
            tokens.append(self.next_token(hidden_states[-1]))
            if len(tokens) == max_tokens or tokens[-1] == END_TOKEN_ID:
                return tokens, hidden_states
