"""The reference model once more, the plain way: one sequence, no paging, no caches, numpy's int64.

Shares the weights with the real model and nothing else: no float, no packing, no tiles. Everything in it may be slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mmcached.wire.model_config import ModelConfig
from mmcached.wire.vocabulary import BEGIN_TOKEN_ID, END_TOKEN_ID, VOCABULARY_SIZE, Modality
from mmcached.worker.model.arithmetic import draw

P = 4093
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Image:
    """What preprocessing makes of an image."""

    pixel_values: npt.NDArray[np.uint8]
    grid: tuple[int, int]


@dataclass(frozen=True)
class VideoSlice:
    """What it makes of two frames of a video."""

    frames: npt.NDArray[np.uint8]
    grid: tuple[int, int]


@dataclass(frozen=True)
class SoundSlice:
    """What it makes of a window of a sound."""

    samples: npt.NDArray[np.int16]


Item = Image | VideoSlice | SoundSlice


def random_image(rng: np.random.Generator, grid: tuple[int, int], patch_size: int) -> Image:
    shape = (grid[0] * grid[1], 3 * patch_size**2)
    return Image(rng.integers(0, 256, shape, dtype=np.uint8), grid)


def random_video(rng: np.random.Generator, grid: tuple[int, int], patch_size: int) -> VideoSlice:
    shape = (grid[0] * grid[1], 2 * 3 * patch_size**2)
    return VideoSlice(rng.integers(0, 256, shape, dtype=np.uint8), grid)


def random_sound(rng: np.random.Generator, num_frames: int, audio_frame: int) -> SoundSlice:
    return SoundSlice(rng.integers(-32768, 32768, (num_frames, audio_frame), dtype=np.int16))


def modality_of(item: Item) -> Modality:
    match item:
        case Image():
            return "image"
        case VideoSlice():
            return "video"
        case SoundSlice():
            return "audio"


def num_embeds_of(item: Item) -> int:
    match item:
        case Image():
            return len(item.pixel_values)
        case VideoSlice():
            return len(item.frames)
        case SoundSlice():
            return len(item.samples)


class Oracle:
    """Computes a whole sequence from nothing, each time; weights are drawn once."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self._weights: dict[str, IntArray] = {}

    def _draw(self, name: str, *shape: int) -> IntArray:
        found = self._weights.get(name)
        if found is None:
            found = self._weights[name] = draw(self.config.seed, name, shape).numpy().astype(np.int64)
        return found

    def encode(self, item: Item) -> IntArray:
        """`(num_embeds, hidden_size)` embeddings."""
        match item:
            case Image():
                return self._encode("encoder", *self._placed("encoder", item.pixel_values, item.grid))
            case VideoSlice():
                return self._encode("video", *self._placed("video", item.frames, item.grid))
            case SoundSlice():
                place = self._draw("audio.frame", self.config.encoder_width)
                numbers = [index * place for index in range(len(item.samples))]
                return self._encode("audio", item.samples.astype(np.int64) + 32768, numbers)

    def _placed(
        self, name: str, patches: npt.NDArray[np.uint8], grid: tuple[int, int]
    ) -> tuple[IntArray, list[IntArray]]:
        """Return patches, and what is added for the place of each."""
        row, column = (self._draw(f"{name}.{part}", self.config.encoder_width) for part in ("row", "column"))
        places = [down * row + right * column for down in range(grid[0]) for right in range(grid[1])]
        return patches.astype(np.int64), places

    def _encode(self, name: str, rows: IntArray, places: Sequence[IntArray]) -> IntArray:
        config, width = self.config, self.config.encoder_width
        x = (rows @ self._draw(f"{name}.input", rows.shape[1], width) + np.stack(places)) % P
        for layer in range(config.encoder_layers):
            query, key, value = (
                x @ self._draw(f"{name}.{layer}.{part}", width, width) % P for part in ("query", "key", "value")
            )
            attention = 1 + (query @ key.T) % 13
            x = (x + (attention @ value % P) @ self._draw(f"{name}.{layer}.output", width, width)) % P
            inner = (x @ self._draw(f"{name}.{layer}.up", width, width) % P) ** 2 % P
            x = (x + inner @ self._draw(f"{name}.{layer}.down", width, width)) % P
        return x @ self._draw(f"{name}.output", width, config.hidden_size) % P

    def rows(self, token_ids: Sequence[int], replaced: Mapping[int, IntArray] | None = None) -> dict[str, IntArray]:
        """Return of each key that the model gives the rows of all tokens, `(num_tokens, hidden_size)`.

        Args:
            replaced: by position, what stands there instead of the token.
        """
        config, hidden_size = self.config, self.config.hidden_size
        x = self._draw("decoder.tokens", VOCABULARY_SIZE, hidden_size)[list(token_ids)]
        for position, row in (replaced or {}).items():
            x[position] = row
        place = self._draw("decoder.place", 3, hidden_size)
        for i in range(len(x)):
            x[i] = (x[i] + i * place[0] + (i * i % P) * place[1] + (i // P) * place[2]) % P
        of_layer = [x := self._layer(x, layer) for layer in range(config.num_layers)]
        return dict(zip(config.row_keys, [x, *of_layer], strict=False))

    def hidden_states(self, token_ids: Sequence[int], replaced: Mapping[int, IntArray] | None = None) -> IntArray:
        return self.rows(token_ids, replaced)["hidden_states"]

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
        return (x + inner @ weight("down")) % P

    def next_tokens(self, hidden_states: IntArray) -> list[int]:
        """Return what each of `(n, hidden_size)` hidden states is followed by: of equals, the lowest token."""
        logits = hidden_states @ self._draw("decoder.vocabulary", self.config.hidden_size, VOCABULARY_SIZE) % P
        logits[:, BEGIN_TOKEN_ID] = -1
        best: list[int] = logits[:, : END_TOKEN_ID + 1].argmax(axis=1).tolist()
        return best

    def next_token(self, hidden_state: IntArray) -> int:
        return self.next_tokens(hidden_state[None])[0]

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
