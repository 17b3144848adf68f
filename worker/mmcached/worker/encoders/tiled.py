"""Encodes pictures tile by tile, with towers that encode tiles apart.

    item ── split ──> tiles ── one call of the tower for each ──> their embeddings ── join ──> the item's outputs

One tile at a time, so that the output of a tile is bit-identical to that of Transformers for the tile alone, and does
not depend on the other tiles of its picture. Of a picture with several tiles Transformers gives the same except for
rounding: larger matrix products may add in another order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from mmcached.cache.checkpoints.counting import PIXELS, SIZES, Tiled
from mmcached.cache.store_keys import EMBEDDINGS, TOKENS
from mmcached.wire.errors import InvalidRequest, InvariantError
from mmcached.worker.encoders import packing
from mmcached.worker.encoders.checkpoint import CheckpointEncoder
from mmcached.worker.encoders.encoder import Outputs, tensor_of
from mmcached.worker.encoders.tower import ask


class TiledEncoder(CheckpointEncoder):
    """A checkpoint's tower that takes the tiles of a picture one by one; a `TileEncoder`."""

    batching = "tiles"

    @cached_property
    def tile_embeds(self) -> int:
        return self._counting.per_tile(self._checkpoint.model)

    def encode(self, record: Mapping[str, Any], num_embeds: int) -> Outputs:
        return self.join(record, [self.encode_tile(tile) for tile in self.split(record, num_embeds)])

    def split(self, record: Mapping[str, Any], num_embeds: int) -> list[dict[str, torch.Tensor]]:
        return self._counting.tiles(self._checked(record, "image", num_embeds))

    def encode_tile(self, tile: Mapping[str, torch.Tensor]) -> Outputs:
        try:
            return ask(self._tile_model, self._families["image"], self._loaded(tile, "image") | self._tile_arguments)
        except RuntimeError as error:
            if tile[PIXELS].any():
                raise
            raise InvalidRequest(PIXELS, "a tile of zeros", "the tower takes it for padding") from error

    def join(self, record: Mapping[str, Any], tiles: Sequence[Outputs]) -> Outputs:
        on_device = self._transfers.load([tile[EMBEDDINGS] for tile in tiles])
        if self._families["image"].packing:
            return {EMBEDDINGS: self._packed(record, on_device)}
        embeddings = torch.cat(on_device)
        if TOKENS not in self._counting.inputs:
            return {EMBEDDINGS: embeddings}
        return self._with_text(embeddings, *self._transfers.load([tensor_of(record, TOKENS)]))

    @torch.inference_mode()
    def _packed(self, record: Mapping[str, Any], tiles: Sequence[torch.Tensor]) -> torch.Tensor:
        def encode(numbers: list[int]) -> torch.Tensor:
            return torch.stack([tiles[number] for number in numbers])

        method = getattr(type(self._model), self._families["image"].method)
        sizes = {SIZES: tensor_of(record, SIZES)}
        (packed,) = packing.pack(self._model, method, tensor_of(record, PIXELS), sizes, encode)
        return packed  # type: ignore[no-any-return]

    @cached_property
    def _tile_model(self) -> Any:
        return packing.model_of_one_tile(self._model) if self._families["image"].packing else self._model

    @cached_property
    def _tile_arguments(self) -> dict[str, torch.Tensor]:
        return {SIZES: packing.ONE_SIZE} if self._families["image"].packing else {}

    @cached_property
    def _counting(self) -> Tiled:
        counting = self._checkpoint.countings["image"]
        if not isinstance(counting, Tiled):
            raise InvariantError(f"{self._checkpoint.architecture} has no tiles")
        return counting
