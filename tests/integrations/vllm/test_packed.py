"""A weight that vLLM packs for a CPU, where nobody can read it, counts with all of its bytes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from mmcached.integrations.vllm.packed import watch_packing
from mmcached.integrations.vllm.tower import read_tower


def pack(layer: Any, remove_weight: bool) -> str:
    """Do what vLLM's function does."""
    weight = layer.weight
    layer.cpu_linear = lambda x: nn.functional.linear(x, weight)
    if remove_weight:
        layer.weight = nn.Parameter(torch.empty(0), requires_grad=False)
    return "packed"


@pytest.fixture
def layers() -> Any:
    found = SimpleNamespace(dispatch_cpu_unquantized_gemm=pack)
    watch_packing(found)
    watch_packing(found)
    return found


class Model(nn.Module):
    _language_model_names = ("language_model",)

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.visual = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        with torch.no_grad():
            for number, parameter in enumerate(self.visual.parameters()):
                parameter.fill_(number)
            self.visual.get_parameter("1.weight").fill_(weight)
        self.language_model = nn.Linear(4, 4)

    def embed_multimodal(self) -> None:
        """Return what an item is."""


def tower(model: nn.Module) -> str:
    config = SimpleNamespace(ec_transfer_config=SimpleNamespace(engine_id="packed"))
    found: str = read_tower(SimpleNamespace(get_model=lambda: model, vllm_config=config))["tower"]
    return found


def packed(layers: Any, weight: float, *, remove_weight: bool = True) -> Any:
    model: Any = Model(weight)
    for layer in (*model.visual, model.language_model):
        assert layers.dispatch_cpu_unquantized_gemm(layer, remove_weight=remove_weight) == "packed"
    return model


def test_towers_with_other_packed_weights_differ(layers: Any) -> None:
    model = packed(layers, 1)
    assert model.visual[1].weight.numel() == 0
    assert tower(model) == tower(packed(layers, 1))
    assert tower(model) != tower(packed(layers, 2))
    assert tower(model) != tower(Model(1)), "packed weights are multiplied by other kernels"


def test_a_weight_that_is_kept_is_read_where_it_is(layers: Any) -> None:
    assert tower(packed(layers, 1, remove_weight=False)) == tower(Model(1))


def test_a_layer_that_is_packed_again_has_its_last_weight(layers: Any) -> None:
    model = packed(layers, 1)
    model.visual[1].weight = nn.Parameter(torch.full((4, 4), 2.0))
    layers.dispatch_cpu_unquantized_gemm(model.visual[1], remove_weight=True)
    assert tower(model) == tower(packed(layers, 2))


@pytest.mark.parametrize("is_watched", [False, True])
def test_a_tower_whose_weights_are_unknown_cannot_be_read(layers: Any, is_watched: bool) -> None:
    model: Any = packed(layers, 1) if is_watched else Model(1)
    pack(model.visual[1], remove_weight=True)
    if is_watched:
        layers.dispatch_cpu_unquantized_gemm(model.visual[1], remove_weight=True)
    with pytest.raises(ValueError, match=r"visual\.1\.weight"):
        tower(model)


def test_a_vllm_without_that_function_is_left_alone() -> None:
    watch_packing(SimpleNamespace())
