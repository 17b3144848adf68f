"""The reference model once more, the plain way: one sequence, no paging, no caches, numpy's int64.

Shares the weights with the real model and nothing else: no float, no packing, no tiles. Everything in it may be slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mmcached.wire.model_config import ModelConfig
from mmcached.wire.vocabulary import END_TOKEN_ID, VOCABULARY_SIZE, Modality
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
    """Computes a whole sequence from nothing, each time."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    def _draw(self, name: str, *shape: int) -> IntArray:
        return draw(self.config.seed, name, shape).numpy().astype(np.int64)

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
