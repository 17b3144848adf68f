"""Asks models for image features, and compares what they give."""

from __future__ import annotations

from typing import Any

import torch

from mmcached.worker.encoders.families import find_family
from tests.hosts.transformers.models import Inputs


def of_images(inputs: Inputs) -> Inputs:
    return {name: inputs[name] for name in ("pixel_values", "image_grid_thw") if name in inputs}


def ask(model: Any, inputs: Inputs) -> dict[str, Any]:
    """Return the parts of the family's output for all images."""
    inner, family = find_family(model)
    output = getattr(inner, family.method)(**of_images(inputs), return_dict=True)
    return {name: output[name] for name in family.parts}


def one_by_one(model: Any, inputs: Inputs) -> list[torch.Tensor]:
    """Return what `tensors` returns, of each image alone as the model itself gives it."""
    images = of_images(inputs)
    pixels, grids = images["pixel_values"], images.get("image_grid_thw")
    if grids is None:
        alone = [{"pixel_values": image[None]} for image in pixels]
    else:
        parts = torch.split(pixels, grids.prod(-1).tolist())
        alone = [{"pixel_values": part, "image_grid_thw": grid[None]} for part, grid in zip(parts, grids, strict=True)]
    return [tensor for each in alone for tensor in tensors(ask(model, each))]


def tensors(parts: dict[str, Any]) -> list[torch.Tensor]:
    """Return all tensors of an output: all parts of the first image, then those of the next."""
    return [tensor for image in zip(*map(_per_image, parts.values()), strict=True) for part in image for tensor in part]


def _per_image(part: Any) -> list[list[torch.Tensor]]:
    if isinstance(part[0], torch.Tensor):
        return [[image] for image in part]
    return [list(levels) for levels in zip(*part, strict=True)]


def assert_equal(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    """Compare bit for bit."""
    assert [each.dtype for each in found] == [each.dtype for each in wanted]
    assert len(found) == len(wanted) > 0
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
