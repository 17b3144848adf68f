"""Weights that change between two calls: features as without a store, equal weights share one name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mmcached.client import Client
from mmcached.integrations.transformers import cached_image_features
from tests.hosts.transformers import models
from tests.hosts.transformers.outputs import ask, assert_equal, one_by_one, tensors

CPU = torch.device("cpu")


def edited_in_place(model: Any) -> None:
    for weight in model.model.vision_tower.parameters():
        weight.mul_(1.25)


def loaded_anew(model: Any) -> None:
    tower = model.model.vision_tower
    tower.load_state_dict({name: value * 1.25 for name, value in tower.state_dict().items()})


def assigned(model: Any) -> None:
    layer = model.model.vision_tower.encoder.layers[0].self_attn.q_proj
    layer.weight = torch.nn.Parameter(layer.weight * 1.25)


UPDATES = [edited_in_place, loaded_anew, assigned]


@pytest.mark.parametrize("update", UPDATES, ids=lambda update: update.__name__)
@torch.no_grad()
def test_after_an_update_those_with_equal_weights_share(client: Client, update: Callable[[Any], None]) -> None:
    (one, inputs), (other, _) = models.make("llava"), models.make("llava")
    with cached_image_features(one, client) as first, cached_image_features(other, client) as second:
        ask(one, inputs)
        update(one)
        changed, _ = models.make("llava")
        update(changed)
        wanted = one_by_one(changed, inputs)
        assert_equal(tensors(ask(one, inputs)), wanted)
        assert first.num_encoded == 4
        assert_equal(tensors(ask(other, inputs)), one_by_one(models.make("llava")[0], inputs))
        assert second.num_encoded == 0, "the other has the former weights"
        update(other)
        assert_equal(tensors(ask(other, inputs)), wanted)
        assert second.num_encoded == 0


@torch.no_grad()
def test_ten_updates_of_the_language_model_encode_nothing(client: Client) -> None:
    model, inputs = models.make("llava")
    with cached_image_features(model, client) as features:
        for _ in range(10):
            ask(model, inputs)
            for weight in model.model.language_model.parameters():
                weight.add_(0.01)
    assert (features.num_images, features.num_encoded) == (20, 2)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@torch.no_grad()
def test_an_adapter_that_comes_and_goes(client: Client) -> None:
    peft = pytest.importorskip("peft")
    model, inputs = models.make("llava")
    with cached_image_features(model, client) as features:
        plain = tensors(ask(model, inputs))
        name = features.fingerprint(CPU)
        config = peft.LoraConfig(target_modules=r".*vision_tower.*q_proj", init_lora_weights=False)
        adapted = peft.get_peft_model(model, config).eval()
        assert features.fingerprint(CPU) is None
        assert not torch.equal(tensors(ask(model, inputs))[0], plain[0])
        assert features.num_bypassed == 1
        adapted.unload()
        assert_equal(tensors(ask(model, inputs)), plain)
        assert (features.num_encoded, features.num_bypassed) == (2, 1)
        assert features.fingerprint(CPU) == name
