"""Encoder of the reference model: one item -> one embedding for each of its rows.

    image   patches of an image             pixel_values (n, 3 * patch_size^2) uint8         places: row, column
    video   patches of a pair of frames     frames       (n, 2 * 3 * patch_size^2) uint8     places: row, column
    audio   frames of audio                 samples      (n, audio_frame) int16              place: number of the frame

        x = rows · W_in + place * r + …             (n, width)         samples are shifted by 32768
        per layer:  x += attention(x) · W_o         weights from query and key, all rows attend to all
                    x += (x · W_up)^2 · W_down
        embeddings = x · W_out                      (n, hidden_size) int32
    everything modulo PRIME

Each modality has its own weights. Items are encoded one at a time; batching would give the same, since integers are
exact. Every embedding depends on every row of its item and on the places of the rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property

import torch

from mmcached.wire.errors import InvalidRequest
from mmcached.wire.model_config import ModelConfig
from mmcached.worker.model.arithmetic import draw, reduce_
from mmcached.worker.model.bounds import ATTENTION_MODULUS

LOWEST_SAMPLE = -32_768
"""Subtracted from each sample, because no term of a sum may be negative."""


class EncoderLayer:
    """One layer `(n, width)` -> `(n, width)`, with weights `(width, width)` each and a single attention head."""

    def __init__(self, seed: int, name: str, width: int, device: torch.device) -> None:
        names = ("query", "key", "value", "output", "up", "down")
        self._query, self._key, self._value, self._output, self._up, self._down = (
            draw(seed, f"{name}.{part}", (width, width)).to(device) for part in names
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (reduce_(x @ weight) for weight in (self._query, self._key, self._value))
        weights = reduce_(query @ key.T, ATTENTION_MODULUS).add_(1)
        x = reduce_((reduce_(weights @ value) @ self._output).add_(x))
        inner = reduce_(x @ self._up)
        inner = reduce_(inner.mul_(inner))
        return reduce_((inner @ self._down).add_(x))


class RowEncoder:
    """Encoder of one modality, called `name`; `places` names the coordinates of a row."""

    def __init__(
        self, config: ModelConfig, name: str, num_features: int, places: Sequence[str], device: torch.device
    ) -> None:
        seed, width = config.seed, config.encoder_width
        self._device = device
        self._input = draw(seed, f"{name}.input", (num_features, width)).to(device)
        self._places = [draw(seed, f"{name}.{place}", (width,)).to(device) for place in places]
        self._layers = [EncoderLayer(seed, f"{name}.{i}", width, device) for i in range(config.encoder_layers)]
        self._output = draw(seed, f"{name}.output", (width, config.hidden_size)).to(device)

    def __call__(self, rows: torch.Tensor, *places: torch.Tensor) -> torch.Tensor:
        """Return new embeddings `(n, hidden_size)` int32 in [0, PRIME) on the device.

        `rows` is `(n, num_features)`, non-negative whole numbers, float64 on the device; `places` are `(n,)` each.
        """
        x = rows @ self._input
        for place, weight in zip(places, self._places, strict=True):
            x.add_(torch.outer(place.to(self._device, torch.float64), weight))
        x = reduce_(x)
        for layer in self._layers:
            x = layer(x)
        return reduce_(x @ self._output).to(torch.int32)


class ItemEncoder:
    """Encodes items of each modality. Deterministic in `config.seed`; holds only weights, on `device`.

    Weights for clips are drawn at first use, because many services never see a clip. `bounds.check_bounds` must have
    accepted the sizes. Encoders with the same `fingerprint` (32 hex digits) give the same output for each item.
    """

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._config = config
        self._device = device
        self._num_pixels = 3 * config.patch_size**2
        self._image = RowEncoder(config, "encoder", self._num_pixels, ("row", "column"), device)
        # Independent of device and torch version, because integers are exact.
        sizes = (config.patch_size, config.audio_frame, config.encoder_width, config.encoder_layers, config.hidden_size)
        self.fingerprint = hashlib.blake2b(f"reference {(config.seed, *sizes)}".encode(), digest_size=16).hexdigest()

    @cached_property
    def _video(self) -> RowEncoder:
        return RowEncoder(self._config, "video", 2 * self._num_pixels, ("row", "column"), self._device)

    @cached_property
    def _audio(self) -> RowEncoder:
        return RowEncoder(self._config, "audio", self._config.audio_frame, ("frame",), self._device)

    def image(self, pixel_values: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        """Return the embeddings `(num_patches, hidden_size)` int32 in [0, PRIME) of one image, on the encoder's device.

        Args:
            pixel_values: `(num_patches, 3 * patch_size^2)` uint8, row by row, on any device; read only during the call.
            grid: rows and columns of patches.

        Raises:
            InvalidRequest: names the invalid field.
        """
        self._check_patches("pixel_values", pixel_values, self._num_pixels, grid)
        return self._image(self._numbers(pixel_values), *_places(grid))

    def video(self, frames: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        """Return the embeddings of one slice of a video, as `image`.

        `frames` is `(num_patches, 2 * 3 * patch_size^2)` uint8: at each place the patch of one frame, then the other's.
        """
        self._check_patches("frames", frames, 2 * self._num_pixels, grid)
        return self._video(self._numbers(frames), *_places(grid))

    def audio(self, samples: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of one slice of audio, as `image`; `samples` is `(num_frames, audio_frame)` int16."""
        _check_rows("samples", samples, torch.int16, self._config.audio_frame)
        _check_number("samples", len(samples), self._config.audio_window, "frames")
        return self._audio(self._numbers(samples).sub_(LOWEST_SAMPLE), torch.arange(len(samples)))

    def _numbers(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.to(self._device).to(torch.float64)

    def _check_patches(self, name: str, rows: torch.Tensor, num_features: int, grid: tuple[int, int]) -> None:
        _check_rows(name, rows, torch.uint8, num_features)
        _check_number(name, len(rows), self._config.max_patches_per_image, "patches")
        if min(grid) < 1 or grid[0] * grid[1] != len(rows):
            raise InvalidRequest("grid", str(grid), f"rows times columns must be {len(rows)} patches")


def _places(grid: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    place = torch.arange(grid[0] * grid[1])
    return place // grid[1], place % grid[1]


def _check_rows(name: str, rows: torch.Tensor, dtype: torch.dtype, num_features: int) -> None:
    if rows.dtype != dtype:
        raise InvalidRequest(f"{name}.dtype", str(rows.dtype), f"must be {dtype}")
    if rows.ndim != 2 or rows.shape[1] != num_features:
        raise InvalidRequest(f"{name}.shape", str(tuple(rows.shape)), f"must be (n, {num_features})")


def _check_number(name: str, number: int, limit: int, unit: str) -> None:
    if not 1 <= number <= limit:
        raise InvalidRequest(name, number, f"must have 1 … {limit} {unit}")
