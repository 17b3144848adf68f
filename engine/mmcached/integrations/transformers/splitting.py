"""Splits a call for several images into one per image, and joins their outputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mmcached.worker.encoders.families import GRIDS, Family, Form

Parts = dict[str, Any]
"""The kept parts of one image's output: a tensor, for `levels` a list of tensors, or None."""
Load = Callable[[list[torch.Tensor]], list[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Picture:
    """One image or tile of a call, and the arguments to encode it alone.

    Attributes:
        pixels: `(1, …)`, or `(patches, …)` for Qwen; contiguous.
        arguments: Arguments of the method beside the pixels.
    """

    pixels: torch.Tensor
    arguments: Mapping[str, Any]


def split(family: Family, pixels: torch.Tensor, arguments: Mapping[str, Any]) -> list[Picture] | None:
    """Return the images of a call in order; None if pixels and grid disagree."""
    if family.grid is None:
        return [Picture(image[None].contiguous(), arguments) for image in pixels]
    grid, dimension = arguments.get(family.grid), GRIDS[family.grid]
    if not isinstance(grid, torch.Tensor) or grid.dim() != 2:
        return None
    patch_width = 1 if dimension == 0 else pixels.shape[-2]  # else patches are square, and one next to the other
    sizes = [num_patches * patch_width for num_patches in grid.prod(-1).tolist()]
    if sum(sizes) != pixels.shape[dimension] or (dimension != 0 and len(pixels) != 1):
        return None
    return [
        Picture(part.contiguous(), {**arguments, family.grid: each[None]})
        for part, each in zip(torch.split(pixels, sizes, dimension), grid, strict=True)
    ]


def parts_of(family: Family, output: Any) -> Parts:
    return {name: _TAKE[form](getattr(output, name)) for name, form in family.parts.items()}


def join(family: Family, found: Sequence[Parts], load: Load) -> dict[str, Any]:
    """Return each part of all images, joined in the form of its family.

    Args:
        load: Returns tensors on the model's device; copies only those that are elsewhere.
    """
    return {name: _JOIN[form]([parts[name] for parts in found], load) for name, form in family.parts.items()}


def output_class(model: Any, family: Family) -> Any:
    return getattr(sys.modules[type(model).__module__], family.output)


def _join_stacked(found: list[Any], load: Load) -> Any:
    return None if found[0] is None else torch.cat(load(found))


def _join_split(found: list[Any], load: Load) -> Any:
    return tuple(load(found))


def _join_levels(found: list[Any], load: Load) -> Any:
    return [_join_split(list(level), load) for level in zip(*found, strict=True)]


_TAKE: Mapping[Form, Any] = {
    "stacked": lambda value: value,
    "split": lambda value: value[0],
    "levels": lambda value: [level[0] for level in value],
}
_JOIN: Mapping[Form, Any] = {"stacked": _join_stacked, "split": _join_split, "levels": _join_levels}
