"""Pictures are the same with the store as without, and each text encoder runs once per prompt and host."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmcached.client import Client
from mmcached.frontend.store import verification
from mmcached.integrations.diffusers import Conditioning, cached_conditioning
from tests.client.services import StoreService
from tests.hosts.diffusers.pipelines import PIPELINES, flux, picture, projected, stable_diffusion

CHILD = """
import json, sys
from pathlib import Path
from mmcached.client import Client
from mmcached.integrations.diffusers import cached_conditioning
from tests.hosts.diffusers.pipelines import flux, picture
import torch
torch.set_num_threads(int(sys.argv[2]))
with Client(Path(sys.argv[1])) as client, cached_conditioning(pipeline := flux(), client) as found:
    pixels = picture(pipeline)
print(json.dumps([found.num_calls, found.num_encoded, pixels.flatten().tolist()]))
"""


def ask(pipeline: Any, client: Client, **named: Any) -> tuple[torch.Tensor, Conditioning]:
    with cached_conditioning(pipeline, client) as conditioning:
        pixels = picture(pipeline, **named)
    return pixels, conditioning


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", PIPELINES)
def test_pictures_are_as_without(client: Client, kind: str, dtype: torch.dtype) -> None:
    pipeline = PIPELINES[kind](dtype)
    wanted = picture(pipeline)
    for num_encoded in (2, 0):
        pixels, found = ask(pipeline, client)
        assert torch.equal(pixels, wanted)
        assert (found.num_calls, found.num_encoded, found.num_bypassed, found.num_refused) == (2, num_encoded, 0, 0)
    assert "forward" not in pipeline.text_encoder.__dict__, "the pipeline is as it was"


def test_of_two_processes_one_encodes(client: Client) -> None:
    command = [sys.executable, "-c", CHILD, str(client.run_dir), str(torch.get_num_threads())]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True, timeout=300).stdout) for _ in range(2)]
    assert [run[:2] for run in runs] == [[2, 2], [2, 0]]
    assert runs[0][2] == runs[1][2] == picture(flux()).flatten().tolist()


@pytest.mark.parametrize("kind", ["CLIPTextModel", "CLIPTextModelWithProjection", "T5EncoderModel"])
@torch.no_grad()
def test_layers_are_found_as_they_were_computed(client: Client, kind: str) -> None:
    pipeline = flux()
    encoders = {type(each).__name__: each for each in (pipeline.text_encoder, pipeline.text_encoder_2, projected())}
    encoder = encoders[kind]
    ids = torch.arange(16)[None]
    wanted = encoder(ids, output_hidden_states=True)
    for num_encoded in (1, 0):
        with cached_conditioning(SimpleNamespace(text_encoder=encoder), client) as conditioning:
            output = encoder(ids, output_hidden_states=True)
        assert conditioning.num_encoded == num_encoded
        assert type(output) is type(wanted)
        assert output.keys() == wanted.keys()
        assert all(map(torch.equal, output.hidden_states, wanted.hidden_states))


@pytest.mark.parametrize("change", ["prompt", "negative_prompt", "dtype", "weights", "silent"])
def test_what_differs_is_encoded(client: Client, change: str) -> None:
    named: dict[str, str] = {}
    pipeline = stable_diffusion()
    ask(pipeline, client)
    if change == "prompt":
        named["prompt"] = "a dog"
    elif change == "negative_prompt":
        named["negative_prompt"] = "blurred"
    elif change == "dtype":
        pipeline = stable_diffusion(torch.bfloat16)
    else:
        weight = next(pipeline.text_encoder.parameters())
        with torch.no_grad():
            (weight.data if change == "silent" else weight).mul_(1.5)
    wanted = picture(pipeline, **named)
    pixels, found = ask(pipeline, client, **named)
    assert torch.equal(pixels, wanted)
    assert found.num_encoded == (2 if change in ("dtype", "weights", "silent") else 1)


def test_foreign_code_is_bypassed(client: Client) -> None:
    pipeline = stable_diffusion()
    ask(pipeline, client)
    layer: Any = next(each for each in pipeline.text_encoder.modules() if isinstance(each, torch.nn.LayerNorm))
    forward = layer.forward
    layer.forward = lambda states: 2 * forward(states)
    wanted = picture(pipeline)
    pixels, found = ask(pipeline, client)
    assert torch.equal(pixels, wanted)
    assert (found.num_calls, found.num_bypassed) == (0, 2)


def test_weights_that_are_offloaded_meanwhile_are_bypassed(client: Client) -> None:
    """As by accelerate: a layer's weights are elsewhere until its call."""
    pipeline = stable_diffusion()
    with cached_conditioning(pipeline, client) as found:
        wanted = picture(pipeline)
        layer: Any = next(each for each in pipeline.text_encoder.modules() if isinstance(each, torch.nn.LayerNorm))
        weight, bias = layer.weight, layer.bias
        layer.forward = lambda states: torch.nn.functional.layer_norm(states, weight.shape, weight, bias, layer.eps)
        layer.weight = torch.nn.Parameter(weight.to("meta"))
        assert torch.equal(picture(pipeline), wanted)
    assert (found.num_calls, found.num_bypassed) == (2, 2)


def test_a_store_that_goes_changes_nothing(run_dir: Path) -> None:
    pipeline = flux()
    wanted, other = picture(pipeline), picture(pipeline, "a dog")
    with ExitStack() as stack:
        client = stack.enter_context(Client(run_dir))
        with StoreService(run_dir, store_gb=1 / 16):
            conditioning = stack.enter_context(cached_conditioning(pipeline, client))
            assert torch.equal(picture(pipeline), wanted)
        assert torch.equal(picture(pipeline), wanted)
        assert torch.equal(picture(pipeline, "a dog"), other)
        assert conditioning.num_encoded > 2


def test_found_outputs_are_verified(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "VERIFY_S", 600.0)
    pipeline = flux()
    wanted, _ = ask(pipeline, client)
    client.verify(1.0)
    pixels, found = ask(pipeline, client)
    assert torch.equal(pixels, wanted)
    assert found.num_encoded == 2, "hits are encoded again"
    assert (client.verify(1.0).verified, client.verify(1.0).different) == (2, 0)
    key = client.keys("conditioning/*")[0]
    hit = client.get(key)
    assert hit is not None
    record: Any = hit.record
    next(iter(record.values())).view(-1).view(torch.uint8)[0] ^= 1
    assert client.put(key, record, overwrite=True)
    assert torch.equal(ask(pipeline, client)[0], wanted)
    now = client.verify(0.0)
    assert (now.verified, now.different) == (4, 1)
    assert now.refused == [key.rpartition("/")[0] + "/"]
    assert key not in client.keys("conditioning/*")
