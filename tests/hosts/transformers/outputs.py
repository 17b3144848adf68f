"""Asks models for image features, and compares what they give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch

from mmcached.worker.encoders.families import find_family
from tests.hosts.transformers.models import Inputs


def of_images(inputs: Inputs) -> Inputs:
    names = ("pixel_values", "image_grid_thw", "target_sizes", "image_sizes")
    return {name: inputs[name] for name in names if name in inputs}


def ask(model: Any, inputs: Inputs) -> dict[str, Any]:
    """Return the parts of the family's output for all images."""
    inner, family = find_family(model)
    output = getattr(inner, family.method)(**of_images(inputs), return_dict=True)
    return {name: output[name] for name in family.parts}


def one_by_one(model: Any, inputs: Inputs) -> list[torch.Tensor]:
    """Return what `tensors` returns, of each image or tile alone as the model itself gives it."""
    images = of_images(inputs)
    if "image_sizes" in images:
        with row_by_row(model.model):
            return tensors(ask(model, images))
    pixels = images["pixel_values"]
    if "image_grid_thw" in images:
        alone = _with_grids(images, "image_grid_thw", torch.split(pixels, images["image_grid_thw"].prod(-1).tolist()))
    elif "target_sizes" in images:
        widths = [int(number) * pixels.shape[-2] for number in images["target_sizes"].prod(-1)]
        alone = _with_grids(images, "target_sizes", torch.split(pixels, widths, -1))
    else:
        alone = [{"pixel_values": image[None]} for image in pixels]
    return [tensor for each in alone for tensor in tensors(ask(model, each))]


def _with_grids(images: Inputs, name: str, parts: Iterable[torch.Tensor]) -> list[Inputs]:
    return [
        {"pixel_values": part.contiguous(), name: grid[None]} for part, grid in zip(parts, images[name], strict=True)
    ]


@contextmanager
def row_by_row(model: Any) -> Iterator[None]:
    """Have a model's tower and projector take a batch one row after the other."""
    tower, projector = model.vision_tower.forward, model.multi_modal_projector.forward

    def of_rows(pixels: torch.Tensor, **arguments: Any) -> Any:
        return _Rows([tower(row[None], **arguments) for row in pixels])

    model.vision_tower.forward = of_rows
    model.multi_modal_projector.forward = lambda states: torch.cat([projector(row[None]) for row in states])
    try:
        yield
    finally:
        del model.vision_tower.forward, model.multi_modal_projector.forward


class _Rows:
    """Hidden states of several outputs, by layer."""

    def __init__(self, outputs: list[Any]) -> None:
        self._outputs = outputs
        self.pooler_output: Any = None

    @property
    def hidden_states(self) -> Self:
        return self

    def __getitem__(self, name: Any) -> Any:
        if name == "pooler_output":
            return self.pooler_output
        states = [output.hidden_states[name] for output in self._outputs]
        if states[0].is_contiguous():
            return torch.cat(states)
        return torch.cat([each.mT for each in states]).mT  # products round otherwise for another layout


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
