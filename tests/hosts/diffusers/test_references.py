"""References, videos and text encoders of Qwen2.5-VL's kind: pictures are the same with the store as without."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import diffusers
import pytest
import torch
import transformers

from mmcached.client import Client
from mmcached.integrations.diffusers import Conditioning, cached_conditioning
from mmcached.integrations.transformers import cached_image_features
from tests.hosts.diffusers.references import (
    VISION,
    image_to_image,
    picture,
    qwen2_vl,
    qwen3,
    qwen_image,
    reference,
    wan,
)

KINDS = {"image_to_image": (image_to_image, 3), "wan": (wan, 4), "qwen_image": (qwen_image, 2)}
"""Pipelines, and their calls of encoders for one picture."""


def ask(pipeline: Any, client: Client, **named: Any) -> tuple[torch.Tensor, Conditioning]:
    with cached_conditioning(pipeline, client) as conditioning:
        pixels = picture(pipeline, **named)
    return pixels, conditioning


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_pictures_and_videos_are_as_without(client: Client, kind: str, dtype: torch.dtype) -> None:
    make, num_calls = KINDS[kind]
    pipeline = make(dtype)
    wanted = picture(pipeline)
    assert wanted.isfinite().all()
    for num_encoded in (num_calls, 0):
        pixels, found = ask(pipeline, client)
        assert torch.equal(pixels, wanted)
        counters = found.num_calls, found.num_encoded, found.num_bypassed, found.num_refused
        assert counters == (num_calls, num_encoded, 0, 0)
    assert "encode" not in pipeline.vae.__dict__, "the pipeline is as it was"


def test_latents_are_drawn_by_each_picture(client: Client) -> None:
    pipeline = image_to_image()
    wanted = [picture(pipeline, seed=seed) for seed in (0, 1)]
    assert not torch.equal(*wanted)
    for seed in (0, 1):
        pixels, found = ask(pipeline, client, seed=seed)
        assert torch.equal(pixels, wanted[seed])
        assert found.num_encoded == (0 if seed else 3)


@pytest.mark.parametrize("kind", ["image_to_image", "wan"])
@pytest.mark.parametrize("change", ["reference", "weights", "silent", "tiling", "code"])
def test_what_differs_is_encoded(client: Client, kind: str, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = KINDS[kind][0]()
    vae = pipeline.vae
    ask(pipeline, client)
    named: dict[str, Any] = {}
    if change == "reference":
        named["value"] = 0.7
    elif change == "tiling":
        vae.enable_tiling()
    elif change == "code":
        inner = type(vae)._encode
        monkeypatch.setattr(type(vae), "_encode", lambda self, x: 1.5 * inner(self, x))
    else:
        weight = next(vae.encoder.parameters())
        with torch.no_grad():
            (weight.data if change == "silent" else weight).mul_(1.5)
    wanted = picture(pipeline, **named)
    pixels, found = ask(pipeline, client, **named)
    assert torch.equal(pixels, wanted)
    num_of_reference = 2 if kind == "wan" and change == "reference" else 1
    assert found.num_encoded + found.num_bypassed == num_of_reference


def test_another_memory_format_is_bypassed(client: Client) -> None:
    pipeline = image_to_image()
    pipeline.vae.to(memory_format=torch.channels_last)
    wanted = picture(pipeline)
    pixels, found = ask(pipeline, client)
    assert torch.equal(pixels, wanted)
    assert (found.num_calls, found.num_bypassed) == (2, 1)


@pytest.mark.parametrize(
    ("kind", "has_states"),
    [
        ("CLIPVisionModel", True),
        ("CLIPVisionModelWithProjection", True),
        ("CLIPVisionModelWithProjection", False),
        ("SiglipVisionModel", False),
    ],
)
@torch.no_grad()
def test_image_encoders(client: Client, kind: str, has_states: bool) -> None:
    torch.manual_seed(0)
    settings = VISION if kind.startswith("CLIP") else {**VISION, "vision_use_head": True}
    config = getattr(transformers, "SiglipVisionConfig" if "Siglip" in kind else "CLIPVisionConfig")(**settings)
    encoder = getattr(transformers, kind)(config).eval()
    wanted = encoder(pixel_values=reference(), output_hidden_states=has_states)
    for num_encoded in (1, 0):
        with cached_conditioning(SimpleNamespace(image_encoder=encoder), client) as conditioning:
            output = encoder(pixel_values=reference(), output_hidden_states=has_states)
        assert (conditioning.num_encoded, conditioning.num_calls) == (num_encoded, 1)
        assert type(output) is type(wanted)
        assert same(output, wanted)


@torch.no_grad()
def test_a_vae_of_ltx(client: Client) -> None:
    torch.manual_seed(0)
    vae = diffusers.AutoencoderKLLTXVideo(
        latent_channels=8,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1, 1),
    ).eval()
    pixels = torch.linspace(-1, 1, 3 * 9 * 32 * 32).view(1, 3, 9, 32, 32)
    wanted = vae.encode(pixels).latent_dist
    for num_encoded, is_whole in ((1, True), (0, True), (1, False)):
        with cached_conditioning(SimpleNamespace(vae=vae), client) as conditioning:
            output = vae.encode(pixels, return_dict=is_whole)
        assert (conditioning.num_encoded, conditioning.num_calls) == (num_encoded, 1)
        posterior = output.latent_dist if is_whole else output[0]
        assert torch.equal(posterior.mean, wanted.mean)
        assert torch.equal(posterior.std, wanted.std)


@pytest.mark.parametrize("kind", ["Qwen2VL", "Qwen3"])
@torch.no_grad()
def test_language_models(client: Client, kind: str) -> None:
    torch.manual_seed(0)
    encoder = qwen2_vl() if kind == "Qwen2VL" else qwen3()
    ids, mask = torch.arange(7, 15).view(2, 4), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    wanted = encoder(ids, attention_mask=mask, output_hidden_states=True)
    for num_encoded in (1, 0):
        with cached_conditioning(SimpleNamespace(text_encoder=encoder), client) as conditioning:
            output = encoder(ids, attention_mask=mask, output_hidden_states=True)
        assert (conditioning.num_encoded, conditioning.num_calls) == (num_encoded, 1)
        assert same(output.hidden_states, wanted.hidden_states)
        assert torch.equal(output.logits, wanted.logits)


@torch.no_grad()
def test_qwen_sees_reference_pictures(client: Client) -> None:
    encoder = qwen_image().text_encoder
    tiles = torch.linspace(-1, 1, 16 * 1176).view(16, 1176)
    asked = {"pixel_values": tiles, "image_grid_thw": torch.tensor([[1, 4, 4]]), "output_hidden_states": True}
    ids = torch.tensor([[7, 5, 5, 5, 5, 8]])
    wanted = encoder(ids, **asked).hidden_states
    for num_encoded, changed in ((1, tiles), (0, tiles), (1, tiles + 1)):
        with cached_conditioning(SimpleNamespace(text_encoder=encoder), client) as conditioning:
            output = encoder(ids, **{**asked, "pixel_values": changed})
        assert (conditioning.num_encoded, conditioning.num_calls) == (num_encoded, 1)
        assert all(map(torch.equal, output.hidden_states, wanted)) == (changed is tiles)


@torch.no_grad()
def test_names_are_not_those_of_image_features(client: Client) -> None:
    """Image features depend on the tower alone, states on the language model, too."""
    encoder = qwen_image().text_encoder
    ids = torch.tensor([[7, 8]])
    with cached_image_features(encoder, client):
        pass
    for _ in range(2):
        wanted = encoder(ids).logits
        with cached_conditioning(SimpleNamespace(text_encoder=encoder), client) as conditioning:
            assert torch.equal(encoder(ids).logits, wanted)
        assert conditioning.num_encoded == 1
        next(encoder.model.language_model.layers.parameters()).mul_(1.5)


@torch.no_grad()
def test_generation_is_bypassed(client: Client) -> None:
    encoder = qwen_image().text_encoder
    wanted = encoder.generate(torch.tensor([[7, 8]]), max_new_tokens=4, do_sample=False)
    with cached_conditioning(SimpleNamespace(text_encoder=encoder), client) as conditioning:
        assert torch.equal(encoder.generate(torch.tensor([[7, 8]]), max_new_tokens=4, do_sample=False), wanted)
    assert conditioning.num_calls == 0 < conditioning.num_bypassed


def same(output: Any, wanted: Any) -> bool:
    if isinstance(wanted, torch.Tensor):
        return torch.equal(output, wanted)
    if isinstance(wanted, tuple):
        return len(output) == len(wanted) and all(map(same, output, wanted))
    return output.keys() == wanted.keys() and all(same(output[name], wanted[name]) for name in wanted)
