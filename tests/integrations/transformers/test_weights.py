"""Each change of a weight shows, whoever makes it and however; and the name follows from the content."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

from mmcached.wire.errors import InvalidRequest
from mmcached.worker.encoders.weights import Weights

NONE: frozenset[str] = frozenset()


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first: nn.Linear = nn.Linear(64, 64)
        self.norm: nn.Module = nn.LayerNorm(64)
        self.text = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(()))
        self.frequencies: torch.Tensor
        self.register_buffer(
            "frequencies", torch.randn(5, generator=torch.Generator().manual_seed(0)), persistent=False
        )


def tower() -> Tower:
    torch.manual_seed(0)
    return Tower()


def digest(model: nn.Module) -> str:
    return Weights(model, frozenset({"text", "scale"})).digest


@torch.no_grad()
def in_place(model: Tower) -> None:
    model.first.weight.add_(1)


@torch.no_grad()
def one_element(model: Tower) -> None:
    model.first.weight[0, 0] += 1  # not one of those that are looked at


def behind_torch(model: Tower) -> None:
    model.first.weight.data.mul_(2)


def merged(model: Tower) -> None:
    model.first.weight.data += 0.5


def other_data(model: Tower) -> None:
    model.first.weight.data = model.first.weight.data + 1


def other_parameter(model: Tower) -> None:
    model.first.weight = nn.Parameter(model.first.weight + 1)


def loaded(model: Tower) -> None:
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})


def other_module(model: Tower) -> None:
    model.norm = nn.Identity()


def other_buffer(model: Tower) -> None:
    model.frequencies = model.frequencies + 1


def rounded(model: Tower) -> None:
    model.to(torch.bfloat16)


CHANGES = [in_place, one_element, behind_torch, merged, other_data, other_parameter]
CHANGES += [loaded, other_module, other_buffer, rounded]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_noticed_and_renames(change: Callable[[Tower], None]) -> None:
    model = tower()
    weights = Weights(model, NONE)
    assert not weights.is_changed()
    change(model)
    assert weights.is_changed()
    assert Weights(model, NONE).digest != weights.digest
    assert not Weights(model, NONE).is_changed()


def first_elements(model: Tower) -> None:
    model.first.weight.data[:8] += 1


def through_numpy(model: Tower) -> None:
    model.norm.get_parameter("bias").detach().numpy()[:4] += 1


@pytest.mark.parametrize("write", [first_elements, through_numpy], ids=lambda write: write.__name__)
def test_a_write_without_a_trace_is_seen_where_all_is_read(write: Callable[[Tower], None]) -> None:
    model = tower()
    weights = Weights(model, NONE)
    assert weights.is_as_read()
    write(model)
    assert not weights.is_changed(), "the watch reads a few bytes"
    assert not weights.is_as_read()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_modules_of_torchscript_are_refused() -> None:
    model = tower()
    model.norm = torch.jit.script(nn.LayerNorm(64))
    with pytest.raises(InvalidRequest, match="norm: RecursiveScriptModule"):
        Weights(model, NONE)


def test_equal_content_has_one_name() -> None:
    assert digest(tower()) == digest(copy.deepcopy(tower()))
    with torch.inference_mode():
        assert digest(tower()) == digest(tower())


def test_what_does_not_matter_is_not_looked_at() -> None:
    model = tower()
    weights = Weights(model, frozenset({"text", "scale"}))
    with torch.no_grad():
        model.text.weight.add_(1)
        model.scale.add_(1)
    assert not weights.is_changed()
    assert digest(model) == weights.digest


def test_every_byte_counts() -> None:
    model = tower()
    before = digest(model)
    flat = model.first.weight.detach().view(-1).view(torch.uint8)
    for place in (0, 1, len(flat) // 3, len(flat) - 1):
        flat[place] ^= 1
        assert digest(model) != before
        flat[place] ^= 1
    assert digest(model) == before


def test_weights_that_cannot_be_read_are_refused() -> None:
    class Packed(nn.Parameter):
        """As a quantiser's: its numbers mean nothing without its scales."""

    model = tower()
    model.first.weight = Packed(torch.zeros(64, 64))
    with pytest.raises(InvalidRequest, match=r"first\.weight: Packed"):
        digest(model)
    with pytest.raises(InvalidRequest, match="on no device"):
        digest(tower().to("meta"))


def test_a_model_dies_though_its_weights_are_watched() -> None:
    model = tower()
    weights, seen = Weights(model, NONE), weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None
    assert weights.digest


def test_a_memory_format_is_part_of_the_digest() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3))
    weights = Weights(model, NONE)
    for value in model.parameters():
        value.data = value.data.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value.data
    assert weights.is_changed()
    assert Weights(model, NONE).digest != weights.digest
