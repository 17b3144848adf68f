"""A worker notices what it writes to its tower without a call, whatever way it takes that torch or the model shows."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn

from mmcached.integrations.watched_writes import is_written, watch_writes
from tests.house import REPOSITORY

PAGE = (REPOSITORY / "docs" / "hosts" / "vllm.md").read_text()
OURS, OTHERS = "one engine", "another engine of this process"


class Part(nn.Linear):
    def load_weights(self, weight: torch.Tensor) -> None:
        """Write as vLLM's loaders do."""
        self.weight.data.copy_(weight)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.visual = nn.Sequential(nn.Linear(4, 4), Part(4, 4))
        self.visual.register_buffer("scale", torch.ones(1))
        self.language_model = Part(4, 4)

    def load_weights(self, weight: torch.Tensor) -> None:
        self.language_model.load_weights(weight)


def watched(engine_id: str = OURS) -> Any:
    model = Model()
    watch(model, engine_id)
    return model


def watch(model: Model, engine_id: str = OURS) -> None:
    watch_writes(engine_id, model, {name for name in model.state_dict() if name.startswith("visual.")})


def set_new(model: Any) -> None:
    model.visual[0].weight = nn.Parameter(model.visual[0].weight.detach().clone())


def set_data(model: Any) -> None:
    model.visual[0].weight.data = torch.ones(4, 4)


def set_module(model: Any) -> None:
    model.visual[1] = Part(4, 4)


def set_tower(model: Any) -> None:
    model.visual = nn.Sequential(nn.Linear(4, 4), Part(4, 4))


def load_nothing(model: Any) -> None:
    with pytest.raises(RuntimeError):
        model.load_weights(torch.zeros(3))


def step(model: Any) -> None:
    for parameter in model.visual.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(model.visual.parameters(), lr=1e-9).step()


WRITES: Mapping[str, Callable[[Any], object]] = {
    "in place": lambda model: model.visual[0].weight.mul_(2),
    "one number": lambda model: model.visual[1].bias[1:2].zero_(),
    "a buffer": lambda model: model.visual.scale.add_(1),
    "copied": lambda model: model.visual[0].weight.copy_(torch.ones(4, 4)),
    "by an optimiser": step,
    "another parameter": set_new,
    "other memory": set_data,
    "another module": set_module,
    "another tower": set_tower,
    "no module": lambda model: delattr(model.visual, "1"),
    "loaded": lambda model: model.load_weights(torch.ones(4, 4)),
    "a part loaded": lambda model: model.visual[1].load_weights(torch.ones(4, 4)),
    "loading has failed, maybe in the middle": load_nothing,
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_is_noticed_until_the_tower_is_read(write: str, mode: Callable[[], torch.no_grad]) -> None:
    model, other = watched(), watched(OTHERS)
    assert not is_written(OURS)
    with mode():
        WRITES[write](model)
    for _ in range(2):
        assert is_written(OURS)
        assert not is_written(OTHERS)
    watch(model)
    assert not is_written(OURS)
    assert other is not model


@torch.no_grad()
def test_writes_to_the_language_model_do_not_count() -> None:
    model = watched()
    model.language_model.weight.mul_(2)
    model.language_model.load_weights(torch.ones(4, 4))
    model.language_model = Part(4, 4)
    assert not is_written(OURS)


def test_a_tower_of_inference_tensors_is_watched_by_its_places() -> None:
    with torch.inference_mode():
        model = watched()
        assert not is_written(OURS)
        set_data(model)
    assert is_written(OURS)


def test_what_torch_does_not_count_is_not_noticed() -> None:
    """The page says so, and what to do."""
    model = watched()
    model.visual[0].weight.data.mul_(2)
    model.visual[0].weight.detach().numpy()[:] = 3
    assert not is_written(OURS)
    assert "through `.data`" in PAGE


def test_an_engine_that_was_not_read_is_not_written() -> None:
    assert not is_written("unknown")


def test_a_model_is_not_kept() -> None:
    model = watched()
    kept = weakref.ref(model)
    del model
    gc.collect()
    assert kept() is None
    assert not is_written(OURS)
