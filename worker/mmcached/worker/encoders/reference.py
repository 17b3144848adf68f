"""Encodes items with the reference model, in exact integers; a record's tensors determine its modality.

    pixel_values, grid    an image
    frames, grid          a slice of a video
    samples               a slice of audio

The one output is `embeddings`, `(num_embeds, hidden_size)` int32: the same on every device and rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mmcached.cache.store_keys import EMBEDDINGS
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.messages.parts import EncoderForm, TensorForm
from mmcached.wire.model_config import ModelConfig
from mmcached.wire.vocabulary import Modality
from mmcached.worker.encoders.encoder import MeasuredForm, Outputs, form_of, tensor_of
from mmcached.worker.model.encoder import ItemEncoder


class ReferenceEncoder:
    """The reference model's encoder, for records of the processors of `mmcached.gateway.processing`."""

    def __init__(self, config: ModelConfig, encoder: ItemEncoder) -> None:
        self._config = config
        self._encoder = encoder

    @property
    def fingerprint(self) -> str:
        return self._encoder.fingerprint

    @property
    def rows(self) -> None:
        """The fingerprint is that of the reference model: integers, the same everywhere."""

    def encode(self, record: Mapping[str, Any], num_embeds: int) -> Outputs:
        if "samples" in record:
            embeddings = self._encoder.audio(tensor_of(record, "samples"))
        elif "frames" in record:
            embeddings = self._encoder.video(tensor_of(record, "frames"), grid_of(record))
        else:
            embeddings = self._encoder.image(tensor_of(record, "pixel_values"), grid_of(record))
        if len(embeddings) != num_embeds:
            raise InvalidRequest("num_embeds", num_embeds, f"the item has {len(embeddings)} embeddings")
        return {EMBEDDINGS: embeddings}

    def measure(self) -> MeasuredForm:
        num_pixels = 3 * self._config.patch_size**2
        patch = torch.zeros((1, num_pixels), dtype=torch.uint8)
        grid = torch.ones(2, dtype=torch.int64)
        embeddings = self.encode({"pixel_values": patch, "grid": grid}, 1)[EMBEDDINGS]
        of_grid = form_of("grid", grid)
        inputs: dict[Modality, list[TensorForm]] = {
            "image": [form_of("pixel_values", patch, [0]), of_grid],
            "video": [TensorForm("frames", "uint8", (-1, 2 * num_pixels)), of_grid],
            "audio": [TensorForm("samples", "int16", (-1, self._config.audio_frame))],
        }
        form = EncoderForm("reference", inputs, [form_of(EMBEDDINGS, embeddings, [0])])
        return MeasuredForm(form, embeddings.nbytes)


def grid_of(record: Mapping[str, Any]) -> tuple[int, int]:
    """Return rows and columns of patches; raises `InvalidRequest` if `grid` is missing or is not int64 `(2,)`."""
    grid = tensor_of(record, "grid")
    if grid.shape != (2,) or grid.dtype != torch.int64:
        raise InvalidRequest("grid", f"{grid.dtype} {tuple(grid.shape)}", "must be torch.int64 (2,)")
    return int(grid[0]), int(grid[1])
