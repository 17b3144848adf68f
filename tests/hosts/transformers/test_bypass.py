"""What is no function of weights, settings and image is neither found nor kept; what changes has another name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from mmcached.cache.name_files import note_name
from mmcached.client import Client
from mmcached.integrations.transformers import ImageFeatures, cached_image_features, tower_names
from mmcached.wire.errors import InvalidRequest
from tests.hosts.transformers import models
from tests.hosts.transformers.outputs import ask, assert_equal, one_by_one, tensors

CPU = torch.device("cpu")
from_peft = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


@contextmanager
def trained(model: Any) -> Iterator[None]:
    model.model.vision_tower.train()
    yield
    model.eval()


@contextmanager
def steered(model: Any) -> Iterator[None]:
    """What is done to look into a model, or to change what it sees."""
    with_hook = model.model.multi_modal_projector.register_forward_hook(lambda module, given, output: output + 1)
    yield
    with_hook.remove()


@contextmanager
def with_gradients(model: Any) -> Iterator[None]:
    with torch.enable_grad():
        yield


@torch.no_grad()
@pytest.mark.parametrize("alter", [trained, steered, with_gradients], ids=lambda alter: alter.__name__)
def test_an_altered_tower_is_left_alone(client: Client, alter: Callable[[Any], Any]) -> None:
    model, inputs = models.make("llava")
    clean = tensors(ask(model, inputs))
    with cached_image_features(model, client) as features:
        with alter(model):
            altered = tensors(ask(model, inputs))
            assert (features.num_images, features.num_bypassed) == (0, 1)
        if alter is with_gradients:
            assert all(each.requires_grad for each in altered)
        if alter is steered:
            assert not torch.equal(altered[0], clean[0])
        assert_equal(tensors(ask(model, inputs)), one_by_one_without(model, features, inputs))
        assert (features.num_images, features.num_encoded, features.num_bypassed) == (2, 2, 1)


def one_by_one_without(model: Any, features: ImageFeatures, inputs: models.Inputs) -> list[torch.Tensor]:
    """Return what the model itself gives, in the middle of the block."""
    replaced = model.model.__dict__.pop("get_image_features")
    try:
        return one_by_one(model, inputs)
    finally:
        model.model.__dict__["get_image_features"] = replaced


@pytest.mark.parametrize("asked", [{"output_hidden_states": True}, {"return_dict": False}], ids=str)
@torch.no_grad()
def test_what_is_not_kept_is_the_models_own(client: Client, asked: dict[str, bool]) -> None:
    model, inputs = models.make("llava")
    wanted = model.model.get_image_features(inputs["pixel_values"], **asked)
    with cached_image_features(model, client) as features:
        found = model.model.get_image_features(inputs["pixel_values"], **asked)
    assert type(found) is type(wanted)
    assert_equal(flat(found), flat(wanted))
    assert (features.num_images, features.num_bypassed) == (0, 1)


def flat(output: Any) -> list[torch.Tensor]:
    """Return all tensors of an output of any form."""
    if isinstance(output, torch.Tensor):
        return [output]
    values = output.values() if isinstance(output, dict) else output or ()
    return [tensor for value in values for tensor in flat(value)]


@torch.no_grad()
def test_several_layers_may_be_asked_for(client: Client) -> None:
    model, inputs = models.make("llava")
    model.model.multi_modal_projector.linear_1 = torch.nn.Linear(2 * models.WIDTH, 64).eval()
    pixels, layers = inputs["pixel_values"], [0, 1]
    wanted = list(model.model.get_image_features(pixels, vision_feature_layer=layers).pooler_output)
    with cached_image_features(model, client) as features:
        for _ in range(2):
            found = model.model.get_image_features(pixel_values=pixels, vision_feature_layer=layers)
            assert_equal(list(found.pooler_output), wanted)
    assert (features.num_images, features.num_encoded) == (4, 2)


@torch.no_grad()
def test_what_the_configuration_says_need_not_be_said(client: Client) -> None:
    model, inputs = models.make("llava")
    with cached_image_features(model, client) as features:
        ask(model, inputs)
        for layer in (None, -2, -1):
            for strategy in (None, "default", "full"):
                model.model.get_image_features(
                    inputs["pixel_values"], vision_feature_layer=layer, vision_feature_select_strategy=strategy
                )
    assert features.num_encoded == 2 * 4, "two layers, each with and without its first row"


@torch.no_grad()
def test_weights_that_change_in_the_middle_are_named_anew(client: Client) -> None:
    model, inputs = models.make("qwen3_vl")
    with cached_image_features(model, client) as features:
        before = tensors(ask(model, inputs))
        first = features.fingerprint(CPU)
        weight = model.model.visual.blocks[0].mlp.linear_fc1.weight
        kept = weight.clone()
        for changed in (weight, weight.data):
            changed.mul_(1.5)
            num_encoded = features.num_encoded
            assert not torch.equal(tensors(ask(model, inputs))[0], before[0])
            assert features.num_encoded == num_encoded + 2
            assert features.fingerprint(CPU) != first
        weight.copy_(kept)
        num_encoded = features.num_encoded
        assert_equal(tensors(ask(model, inputs)), before)
        assert features.num_encoded == num_encoded, "what was kept of them is found again"
        model.model.language_model.norm.weight.add_(1)
        assert features.fingerprint(CPU) == first, "what a tower gives does not depend on the text model"


@torch.no_grad()
def test_autocast_has_results_of_its_own(client: Client) -> None:
    model, inputs = models.make("llava")
    with cached_image_features(model, client) as features:
        plain = tensors(ask(model, inputs))
        with torch.autocast("cpu", torch.bfloat16):
            half = tensors(ask(model, inputs))
    assert (features.num_images, features.num_encoded) == (4, 4)
    assert half[0].dtype != plain[0].dtype or not torch.equal(half[0], plain[0])


@from_peft
@torch.no_grad()
def test_adapters_on_the_tower_are_left_alone_and_merged_ones_are_other_weights(client: Client) -> None:
    peft = pytest.importorskip("peft")
    model, inputs = models.make("llava")
    with cached_image_features(model, client) as features:
        plain = tensors(ask(model, inputs))
        first = features.fingerprint(CPU)
    config = peft.LoraConfig(target_modules=r".*vision_tower.*q_proj", init_lora_weights=False)
    adapted = peft.get_peft_model(model, config).eval()
    with cached_image_features(adapted, client) as features:
        wanted = tensors(ask(adapted, inputs))
        assert not torch.equal(wanted[0], plain[0])
        with adapted.disable_adapter():
            assert_equal(tensors(ask(adapted, inputs)), tensors(ask(model, inputs)))
        assert (features.num_images, features.num_bypassed) == (0, 3)
        merged = adapted.merge_and_unload()
        found = tensors(ask(merged, inputs))
        assert (features.num_images, features.num_encoded, features.num_bypassed) == (2, 2, 3)
        assert torch.allclose(found[0], wanted[0], atol=1e-4)
        assert features.fingerprint(CPU) not in (None, first)


@from_peft
@torch.no_grad()
def test_adapters_on_the_text_model_do_not_matter(client: Client) -> None:
    peft = pytest.importorskip("peft")
    model, inputs = models.make("llava")
    with cached_image_features(model, client):
        ask(model, inputs)
    config = peft.LoraConfig(target_modules=r".*language_model.*q_proj")
    adapted = peft.get_peft_model(model, config).eval()
    with cached_image_features(adapted, client) as features:
        adapted(**inputs)
    assert (features.num_images, features.num_encoded, features.num_bypassed) == (2, 0, 0)


@torch.no_grad()
def test_blocks_may_be_nested(client: Client) -> None:
    model, inputs = models.make("llava")
    with cached_image_features(model, client) as outer:
        with cached_image_features(model, client) as inner:
            ask(model, inputs)
        assert (inner.num_images, inner.num_encoded, outer.num_images) == (2, 2, 0)
        ask(model, inputs)
        assert (outer.num_images, outer.num_encoded) == (2, 0)
    assert "get_image_features" not in model.model.__dict__


def test_a_model_of_no_known_family_is_refused_at_once(client: Client) -> None:
    config = transformers.LlamaConfig(**models.TEXT)
    with (
        pytest.raises(InvalidRequest, match="LlamaForCausalLM"),
        cached_image_features(transformers.LlamaForCausalLM(config), client),
    ):
        pass


def fingerprint_of(model: Any, client: Client, settings: Any = None) -> str | None:
    with settings or nullcontext(), cached_image_features(model, client) as features:
        return features.fingerprint(CPU)


def test_what_differs_has_another_fingerprint(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    def noted(run_dir: Path, rows: dict[str, Any]) -> str:
        made.append(json.loads(json.dumps(rows)))
        return note_name(run_dir, rows)

    monkeypatch.setattr(tower_names, "note_name", noted)
    model, _ = models.make("qwen2_5_vl")
    plain = fingerprint_of(model, client)
    assert made[0]["host"] == "transformers", "outputs of other hosts have other bits, and other names"
    assert fingerprint_of(models.make("qwen2_5_vl")[0], client) == plain
    others = {fingerprint_of(models.make("qwen2_5_vl", seed=1)[0], client)}
    others.add(fingerprint_of(models.make("qwen2_5_vl", torch.bfloat16)[0], client))
    others.add(fingerprint_of(models.make("qwen2_vl")[0], client))
    others.add(fingerprint_of(model, client, torch.autocast("cpu", torch.bfloat16)))
    model.set_attn_implementation("eager")
    others.add(fingerprint_of(model, client))
    model.set_attn_implementation("sdpa")
    assert fingerprint_of(model, client) == plain
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):
        others.add(fingerprint_of(model, client))
    with monkeypatch.context() as changed:
        changed.setattr(tower_names, "library_row", lambda packages: {"packages": {"transformers": "5.99.0"}})
        others.add(fingerprint_of(model, client))
    with monkeypatch.context() as changed:
        changed.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
        others.add(fingerprint_of(model, client))
    with monkeypatch.context() as changed:
        changed.setattr(tower_names, "device_row", lambda device: {"type": "cuda", "name": "NVIDIA H100 80GB HBM3"})
        others.add(fingerprint_of(model, client))
    assert fingerprint_of(model, client) == plain
    assert len(others | {plain}) == 10


def test_a_sum_divided_among_other_threads_has_another_fingerprint(client: Client) -> None:
    """A tower gives other bits then: 7 rows of 4,304 numbers times 1,152 columns do on most processors."""
    model, number = models.make("clip")[0], torch.get_num_threads()
    names = set()
    try:
        for count in (1, 2, 1):
            torch.set_num_threads(count)
            names.add(fingerprint_of(model, client))
    finally:
        torch.set_num_threads(number)
    assert len(names) == 2
