"""The plug-in of vllm-omni beside its worker: sleep and wake-up, offloading, and encoders that an engine wrote."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from mmcached.client import Client
from mmcached.integrations.diffusers import omni_plugin
from mmcached.integrations.diffusers.conditioning import cached_conditioning
from mmcached.integrations.transformers.engine_code import EngineCode, has_engine_modules
from tests.hosts.flux_checkpoint import CLIP


class Worker:
    """The methods of vllm-omni's worker that the plug-in replaces."""

    def __init__(self, runner: Any) -> None:
        self.model_runner = runner

    def sleep(self, level: int = 1) -> int:
        assert "forward" not in self.model_runner.pipeline.text_encoder.__dict__, "its weights are released"
        return level

    def wake_up(self) -> bool:
        return True


class OfEngine(torch.nn.Linear):
    """A layer of an engine."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


OfEngine.__module__ = "vllm.model_executor.layers.linear"


@pytest.fixture
def runner(client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("MMCACHED_CONDITIONING", str(client.run_dir))
    torch.manual_seed(0)
    encoder = transformers.CLIPTextModel(transformers.CLIPTextConfig(**CLIP)).eval()
    runner = SimpleNamespace(pipeline=SimpleNamespace(text_encoder=encoder), offload_backend=None)
    yield runner
    omni_plugin.stop(runner)


@torch.no_grad()
def test_sleep_restores_and_wake_up_replaces(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, named in (
        ("sleep", {"before": lambda worker: omni_plugin.stop(worker.model_runner)}),
        ("wake_up", {"after": lambda worker: omni_plugin.share(worker.model_runner)}),
    ):
        monkeypatch.setattr(Worker, name, getattr(Worker, name))
        for _ in range(2):  # a second call does nothing
            omni_plugin._replace(Worker, name, **named)
    encoder, ids = runner.pipeline.text_encoder, torch.tensor([[1, 2, 53]])
    wanted = encoder(ids).last_hidden_state
    omni_plugin.share(runner)
    worker = Worker(runner)
    for num_encoded in (1, 0):
        assert torch.equal(encoder(ids).last_hidden_state, wanted)
        conditioning, _ = runner._mmcached_conditioning
        assert (conditioning.num_calls, conditioning.num_encoded) == (1, num_encoded)
        assert worker.sleep(level=2) == 2
        assert torch.equal(encoder(ids).last_hidden_state, wanted)
        assert worker.wake_up()


def test_offloaded_encoders_are_left_alone(runner: Any) -> None:
    runner.offload_backend = object()
    omni_plugin.share(runner)
    assert "forward" not in runner.pipeline.text_encoder.__dict__


@torch.no_grad()
@pytest.mark.parametrize("change", ["", "setting", "weight", "lora", "forward", "tensor"])
def test_an_encoder_with_layers_of_an_engine(runner: Any, client: Client, change: str) -> None:
    pipeline, ids = runner.pipeline, torch.tensor([[1, 2, 53]])
    encoder = pipeline.text_encoder
    # The end of the attention's projection, as an engine replaces it in a model of Transformers.
    parent = encoder.encoder.layers[0].mlp if hasattr(encoder, "encoder") else encoder.text_model.encoder.layers[0].mlp
    layer: Any = OfEngine(parent.fc2.in_features, parent.fc2.out_features).eval()
    parent.fc2 = layer
    assert has_engine_modules(encoder)
    with cached_conditioning(pipeline, client) as first:
        wanted = encoder(ids).last_hidden_state
    assert (first.num_encoded, first.num_bypassed) == (1, 0)
    if change == "setting":
        layer.variant = 3
    elif change == "weight":
        layer.weight.mul_(2)
    elif change == "lora":
        layer.__class__ = type("LinearWithLoRA", (OfEngine,), {"__module__": OfEngine.__module__})
    elif change == "forward":
        layer.forward = lambda x: OfEngine.forward(layer, x) * 2
    elif change == "tensor":
        layer.scale = [torch.ones(())]
    with cached_conditioning(pipeline, client) as second:
        found = encoder(ids).last_hidden_state
    is_bypassed = change in ("lora", "forward", "tensor")
    assert (second.num_calls, second.num_encoded) == (int(not is_bypassed), int(change in ("setting", "weight")))
    assert torch.equal(found, wanted) == (change not in ("weight", "forward"))


def test_a_changed_setting_is_noticed() -> None:
    layer: Any = OfEngine(2, 2)
    code = EngineCode(layer, frozenset(), "forward")
    assert code.obstacle is None
    assert not code.is_changed(layer)
    layer.eps = 1e-5
    assert code.is_changed(layer)
    assert EngineCode(layer, frozenset(), "forward").digest != code.digest
