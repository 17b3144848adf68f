"""Takes a call for several images apart, and puts what was found for each together. Knows nothing of the store."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mmcached.worker.encoders.families import GRID, Family, Form

Parts = dict[str, Any]
"""What is kept of one image, by part: a tensor, for `levels` a list of tensors, or None."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One image of a call, and the arguments with which it is asked for alone.

    Attributes:
        pixels: `(1, …)`, or `(patches, …)` for a family with a grid; contiguous.
        arguments: of the method, beside the pixels.
    """

    pixels: torch.Tensor
    arguments: Mapping[str, Any]


def split(family: Family, pixels: torch.Tensor, arguments: Mapping[str, Any]) -> list[Picture] | None:
    """Return the images of a call in order; None if pixels and grid do not fit together."""
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
    """Return what is kept of the output for one image."""
    return {name: _TAKE[form](getattr(output, name)) for name, form in family.parts.items()}


def join(family: Family, found: Sequence[Parts], device: torch.device) -> dict[str, Any]:
    """Return each part of all images in the form of its family, on a device; what is split and there is not copied."""
    return {name: _JOIN[form]([parts[name] for parts in found], device) for name, form in family.parts.items()}


def output_class(model: Any, family: Family) -> Any:
    """Return the class of the output, which the model's own module has."""
    return getattr(sys.modules[type(model).__module__], family.output)


def _join_stacked(found: list[Any], device: torch.device) -> Any:
    return None if found[0] is None else torch.cat([each.to(device) for each in found])


def _join_split(found: list[Any], device: torch.device) -> Any:
    return tuple(each.to(device) for each in found)


def _join_levels(found: list[Any], device: torch.device) -> Any:
    return [_join_split(list(level), device) for level in zip(*found, strict=True)]


_TAKE: Mapping[Form, Any] = {
    "stacked": lambda value: value,
    "split": lambda value: value[0],
    "levels": lambda value: [level[0] for level in value],
}
_JOIN: Mapping[Form, Any] = {"stacked": _join_stacked, "split": _join_split, "levels": _join_levels}
