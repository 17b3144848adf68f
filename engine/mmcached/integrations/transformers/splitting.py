"""Splits a call for several images into one per image, and joins their outputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mmcached.worker.encoders.families import GRID, Family, Form

Parts = dict[str, Any]
"""The kept parts of one image's output: a tensor, for `levels` a list of tensors, or None."""
Load = Callable[[list[torch.Tensor]], list[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Picture:
    """One image of a call, and the arguments to encode it alone.

    Attributes:
        pixels: `(1, …)`, or `(patches, …)` for a family with a grid; contiguous.
        arguments: Arguments of the method beside the pixels.
    """

    pixels: torch.Tensor
    arguments: Mapping[str, Any]


def split(family: Family, pixels: torch.Tensor, arguments: Mapping[str, Any]) -> list[Picture] | None:
    """Return the images of a call in order; None if pixels and grid disagree."""
    if not family.has_grid:
        return [Picture(image[None].contiguous(), arguments) for image in pixels]
    grid = arguments.get(GRID)
    if not isinstance(grid, torch.Tensor) or grid.dim() != 2:
        return None
    sizes = grid.prod(-1).tolist()
    if sum(sizes) != len(pixels):
        return None
    return [
        Picture(part.contiguous(), {**arguments, GRID: each[None]})
        for part, each in zip(torch.split(pixels, sizes), grid, strict=True)
    ]


def parts_of(family: Family, output: Any) -> Parts:
    """Return the parts of one image's output that are kept."""
    return {name: _TAKE[form](getattr(output, name)) for name, form in family.parts.items()}


def join(family: Family, found: Sequence[Parts], load: Load) -> dict[str, Any]:
    """Return each part of all images, joined in the form of its family.

    Args:
        load: Returns tensors on the model's device; copies only those that are elsewhere.
    """
    return {name: _JOIN[form]([parts[name] for parts in found], load) for name, form in family.parts.items()}


def output_class(model: Any, family: Family) -> Any:
    """Return the output class of a family, from the model's module."""
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
