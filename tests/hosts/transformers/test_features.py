"""What is found has the bits of each image alone, in each family; and generation goes as without the store."""

from __future__ import annotations

import pytest
import torch

from mmcached.client import Client
from mmcached.integrations.transformers import cached_image_features
from mmcached.worker.encoders.families import find_family
from tests.hosts.transformers import models
from tests.hosts.transformers.outputs import ask, assert_equal, one_by_one, tensors

GENERATIVE = [maker.__name__ for maker in models.GENERATIVE]
TOWERS = [maker.__name__ for maker in models.TOWERS]


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


@torch.no_grad()
def test_a_batch_rounds_otherwise_than_its_images_alone(client: Client) -> None:
    """The case for encoding images one by one: a product of one row is computed otherwise than that of four."""
    model, _ = models.make("clip")
    inputs = {"pixel_values": models.pictures(4, 3, 56, 56)}
    alone = one_by_one(model, inputs)
    assert not all(torch.equal(one, other) for one, other in zip(tensors(ask(model, inputs)), alone, strict=True))
    with cached_image_features(model, client):
        assert_equal(tensors(ask(model, inputs)), alone)
        assert_equal(tensors(ask(model, {"pixel_values": inputs["pixel_values"].flip(0)})), alone[::-1])
