"""Has a model's own method cut images into tiles, and pack the tiles' outputs that were encoded apart.

    the model's method ──in place of its tower──> which tiles are in use
                       ──in place of its projector──> their outputs, found or encoded ──> packed by the method

The method runs on a shallow copy of the model with other attributes; the model stays as it is, for other threads too.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping
from types import MethodType, SimpleNamespace
from typing import Any

import torch

ONE_SIZE = torch.ones(1, 2, dtype=torch.long)
"""Size of an image that is one tile."""


def pack(
    model: Any,
    method: Callable[..., Any],
    pixels: torch.Tensor,
    arguments: Mapping[str, Any],
    encode: Callable[[list[int]], torch.Tensor],
) -> Any:
    """Return the packed outputs of images, as the method's `pooler_output`.

    Args:
        method: Function of the model's class.
        pixels: `(images, tiles, channels, height, width)`, padded with tiles that are not in use, or `(tiles, …)`.
        arguments: Arguments of the method beside the pixels.
        encode: Returns the outputs `(num_tiles, num_rows, width)` of the tiles with these numbers, counted in `pixels`.
    """
    numbers = torch.arange(pixels.shape[:-3].numel()).view(*pixels.shape[:-3], 1, 1, 1)
    in_use: list[int] = []

    def tower(chosen: torch.Tensor, **_: Any) -> Any:
        in_use.extend(chosen.flatten().tolist())
        return SimpleNamespace(hidden_states=defaultdict(lambda: chosen.flatten(1, 2)))

    def projector(_: torch.Tensor) -> torch.Tensor:
        return encode(in_use)

    other = _copy(model, vision_tower=tower, multi_modal_projector=projector)
    return method(other, numbers, **arguments, return_dict=True).pooler_output


def of_one_tile(model: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method for an image that is one tile, without the row that ends an image."""
    bound = MethodType(method, model_of_one_tile(model))

    def encode(pixels: torch.Tensor, **arguments: Any) -> Any:
        return bound(pixels, image_sizes=ONE_SIZE, **arguments)

    return encode


def model_of_one_tile(model: Any) -> Any:
    """Return a shallow copy of a model for images of `ONE_SIZE`, without the row that ends an image."""
    config = copy.copy(model.config)
    config.image_grid_pinpoints = [[0, 0]]  # the size that no tile but the first, the whole image, covers
    return _copy(model, config=config, image_newline=None)


def _copy(model: Any, **attributes: Any) -> Any:
    other = object.__new__(type(model))
    other.__dict__ = {**model.__dict__, **attributes}  # found before parameters and submodules
    return other
