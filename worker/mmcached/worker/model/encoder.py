"""The vision encoder of the reference model turns the patches of one image into one embedding each.

Knows nothing of caches, requests or text. Encodes one image at a time; integers are exact, so nothing could differ in a
batch. Every embedding depends on every patch of its image and on where the patches are.

    pixel_values (n, 3 * patch_size^2) uint8        grid (2,) = rows, columns, rows * columns = n
        x = pixels · W_in + row * r + column * c                         (n, width)
        per layer:  x += attention(x) · W_o        weights from query and key, all patches see all
                    x += (x · W_up)^2 · W_down
        embeddings = x · W_out                                           (n, hidden_size) int32
    everything modulo PRIME
"""

from __future__ import annotations

import hashlib

import torch

from mmcached.wire.config import ModelConfig
from mmcached.wire.errors import InvalidRequest
from mmcached.worker.model.arithmetic import draw, reduce_
from mmcached.worker.model.bounds import ATTENTION_MODULUS


class EncoderLayer:
    """Weights of one layer, each `(width, width)`, and its step. One head: the mixing matters here, not the heads."""

    def __init__(self, seed: int, name: str, width: int, device: torch.device) -> None:
        names = ("query", "key", "value", "output", "up", "down")
        self._query, self._key, self._value, self._output, self._up, self._down = (
            draw(seed, f"{name}.{part}", (width, width)).to(device) for part in names
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map `(n, width)` to `(n, width)`; values in [0, PRIME)."""
        query, key, value = (reduce_(x @ weight) for weight in (self._query, self._key, self._value))
        weights = reduce_(query @ key.T, ATTENTION_MODULUS).add_(1)
        x = reduce_((reduce_(weights @ value) @ self._output).add_(x))
        inner = reduce_(x @ self._up)
        inner = reduce_(inner.mul_(inner))
        return reduce_((inner @ self._down).add_(x))


class VisionEncoder:
    """Deterministic in `config.seed`; holds weights on `device` and no other state.

    Args:
        config: sizes; `bounds.check_bounds` has accepted them.
    Attributes:
        fingerprint: 32 hex digits; encoders with the same say the same of each image.
    """

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._config = config
        self._device = device
        self._num_features = 3 * config.patch_size**2
        seed, width = config.seed, config.encoder_width
        self._input = draw(seed, "encoder.input", (self._num_features, width)).to(device)
        self._row = draw(seed, "encoder.row", (width,)).to(device)
        self._column = draw(seed, "encoder.column", (width,)).to(device)
        self._layers = [EncoderLayer(seed, f"encoder.{i}", width, device) for i in range(config.encoder_layers)]
        self._output = draw(seed, "encoder.output", (width, config.hidden_size)).to(device)
        # Not of the device nor of a version of torch: integers are exact.
        sizes = (seed, config.patch_size, width, config.encoder_layers, config.hidden_size)
        self.fingerprint = hashlib.blake2b(f"reference {sizes}".encode(), digest_size=16).hexdigest()

    def encode(self, pixel_values: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        """Return the embeddings of one image.

        Args:
            pixel_values: `(num_patches, 3 * patch_size^2)` uint8, row by row, on any device; read only during the call.
            grid: rows and columns of patches.
        Returns:
            `(num_patches, hidden_size)` int32 in [0, PRIME), on the encoder's device; owns its memory.
        Raises:
            InvalidRequest: names the field that does not fit; nothing was computed.
        """
        self._check(pixel_values, grid)
        pixels = pixel_values.to(self._device).to(torch.float64)
        place = torch.arange(grid[0] * grid[1], device=self._device)
        row = (place // grid[1]).to(torch.float64)
        column = (place % grid[1]).to(torch.float64)
        x = (pixels @ self._input).add_(torch.outer(row, self._row)).add_(torch.outer(column, self._column))
        x = reduce_(x)
        for layer in self._layers:
            x = layer(x)
        return reduce_(x @ self._output).to(torch.int32)

    def _check(self, pixel_values: torch.Tensor, grid: tuple[int, int]) -> None:
        if pixel_values.dtype != torch.uint8:
            raise InvalidRequest("pixel_values.dtype", str(pixel_values.dtype), "must be torch.uint8")
        if pixel_values.ndim != 2 or pixel_values.shape[1] != self._num_features:
            shape = str(tuple(pixel_values.shape))
            raise InvalidRequest("pixel_values.shape", shape, f"must be (num_patches, {self._num_features})")
        limit = self._config.max_patches_per_image
        if not 1 <= len(pixel_values) <= limit:
            raise InvalidRequest("pixel_values", len(pixel_values), f"must have 1 … {limit} patches")
        if min(grid) < 1 or grid[0] * grid[1] != len(pixel_values):
            raise InvalidRequest("grid", str(grid), f"rows times columns must be {len(pixel_values)} patches")
