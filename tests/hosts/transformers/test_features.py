"""What is found has the bits of each image alone, in each family; and generation goes as without the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mmcached.client import Client
from mmcached.integrations.transformers import cached_image_features
from mmcached.integrations.transformers.families import find_family
from tests.client.services import StoreService
from tests.hosts.transformers import models
from tests.hosts.transformers.models import Inputs

GENERATIVE = [maker.__name__ for maker in models.GENERATIVE]
TOWERS = [maker.__name__ for maker in models.TOWERS]


@pytest.fixture
def client(run_dir: Path) -> Iterator[Client]:
    with StoreService(run_dir), Client(run_dir, fail_open=False) as client:
        yield client


def of_images(inputs: Inputs) -> Inputs:
    return {name: inputs[name] for name in ("pixel_values", "image_grid_thw") if name in inputs}


def ask(model: Any, inputs: Inputs) -> dict[str, Any]:
    """Return the parts of the family's output for all images."""
    inner, family = find_family(model)
    output = getattr(inner, family.method)(**of_images(inputs), return_dict=True)
    return {name: output[name] for name in family.parts}


def one_by_one(model: Any, inputs: Inputs) -> list[torch.Tensor]:
    """Return the tensors of each image alone, as the model itself gives them, in the order of `tensors`."""
    images = of_images(inputs)
    if "image_grid_thw" in images:
        sizes = images["image_grid_thw"].prod(-1).tolist()
        alone = [
            {"pixel_values": pixels, "image_grid_thw": grid[None]}
            for pixels, grid in zip(torch.split(images["pixel_values"], sizes), images["image_grid_thw"], strict=True)
        ]
    else:
        alone = [{"pixel_values": pixels[None]} for pixels in images["pixel_values"]]
    return [tensor for each in alone for tensor in tensors(ask(model, each))]


def tensors(parts: dict[str, Any]) -> list[torch.Tensor]:
    """Return all tensors of an output: all parts of the first image, then those of the next."""
    return [tensor for image in zip(*map(per_image, parts.values()), strict=True) for part in image for tensor in part]


def per_image(part: Any) -> list[list[torch.Tensor]]:
    if isinstance(part, torch.Tensor):
        return [[image] for image in part]
    if isinstance(part[0], torch.Tensor):
        return [[image] for image in part]
    return [list(levels) for levels in zip(*part, strict=True)]


def assert_equal(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    assert [each.dtype for each in found] == [each.dtype for each in wanted]
    assert len(found) == len(wanted) > 0
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("family", GENERATIVE + TOWERS)
@torch.no_grad()
def test_what_is_found_has_the_bits_of_each_image_alone(client: Client, family: str, dtype: torch.dtype) -> None:
    model, inputs = models.make(family, dtype)
    wanted = one_by_one(model, inputs)
    assert not torch.equal(wanted[0], wanted[len(wanted) // 2]), "the images differ"
    inner, of_family = find_family(model)
    for num_encoded, view in ((2, False), (0, False), (0, True)):
        with cached_image_features(model, client, view=view) as features:
            assert_equal(tensors(ask(model, inputs)), wanted)
        assert (features.num_images, features.num_encoded, features.num_bypassed) == (2, num_encoded, 0)
        assert features.num_hits == 2 - num_encoded
    assert of_family.method not in inner.__dict__, "the model is as it was"


@pytest.mark.parametrize("family", GENERATIVE)
def test_generation_goes_as_without(client: Client, family: str) -> None:
    model, inputs = models.make(family)
    asked = {"max_new_tokens": 4, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    wanted = model.generate(**inputs, **asked)
    for num_encoded in (2, 0):
        with cached_image_features(model, client) as features:
            generated = model.generate(**inputs, **asked)
        assert torch.equal(generated.sequences, wanted.sequences)
        assert all(
            torch.allclose(one, two, atol=1e-4) for one, two in zip(generated.logits, wanted.logits, strict=True)
        )
        assert (features.num_images, features.num_encoded, features.num_bypassed) == (2, num_encoded, 0)
    with torch.no_grad(), cached_image_features(model, client) as features:
        model(**inputs)
    assert (features.num_images, features.num_encoded, features.num_bypassed) == (2, 0, 0)
