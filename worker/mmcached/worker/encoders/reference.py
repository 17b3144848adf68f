"""Encodes images with the reference model, in exact integers.

The one output is `embeddings`, `(num_patches, hidden_size)` int32: the same on every device and rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mmcached.cache.store_keys import EMBEDDINGS
from mmcached.wire.config import ModelConfig
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.messages.parts import EncoderForm
from mmcached.worker.encoders.encoder import Measured, Outputs, form_of, tensor_of
from mmcached.worker.model.encoder import VisionEncoder


class ReferenceEncoder:
    """The reference model's vision encoder, for records as `mmcached.frontend.processing.processor` makes them."""

    def __init__(self, config: ModelConfig, encoder: VisionEncoder) -> None:
        self._config = config
        self._encoder = encoder

    @property
    def fingerprint(self) -> str:
        return self._encoder.fingerprint

    def encode(self, record: Mapping[str, Any], num_embeds: int) -> Outputs:
        embeddings = self._encoder.encode(*image_of(record))
        if len(embeddings) != num_embeds:
            raise InvalidRequest("num_embeds", num_embeds, f"the item has {len(embeddings)} embeddings")
        return {EMBEDDINGS: embeddings}

    def measure(self) -> Measured:
        pixels = torch.zeros((1, 3 * self._config.patch_size**2), dtype=torch.uint8)
        grid = torch.ones(2, dtype=torch.int64)
        embeddings = self.encode({"pixel_values": pixels, "grid": grid}, 1)[EMBEDDINGS]
        inputs = [form_of("pixel_values", pixels, [0]), form_of("grid", grid)]
        form = EncoderForm("reference", inputs, [form_of(EMBEDDINGS, embeddings, [0])])
        return Measured(form, embeddings.nbytes)


def image_of(record: Mapping[str, Any]) -> tuple[torch.Tensor, tuple[int, int]]:
    """Return pixels and grid of an image's record.

    Raises:
        InvalidRequest: one is not there, or is none.
    """
    pixels, grid = tensor_of(record, "pixel_values"), tensor_of(record, "grid")
    if grid.shape != (2,) or grid.dtype != torch.int64:
        raise InvalidRequest("grid", f"{grid.dtype} {tuple(grid.shape)}", "must be torch.int64 (2,)")
    return pixels, (int(grid[0]), int(grid[1]))
