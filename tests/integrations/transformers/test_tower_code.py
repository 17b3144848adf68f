"""Code is named by what it does: what differs has another name, and what cannot be seen through has none."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import normalization

from mmcached.integrations.transformers.tower_code import TowerCode, is_run_unchanged

NONE: frozenset[str] = frozenset()


def tower() -> nn.Sequential:
    """Return a model whose code is torch's alone."""
    return nn.Sequential(nn.Conv2d(3, 4, 2), nn.Flatten(2), nn.LayerNorm(9), nn.GELU(), nn.Linear(9, 2)).eval()


def code_of(model: nn.Module) -> TowerCode:
    return TowerCode(model, NONE, "forward", ["sdpa"])


def test_the_same_code_has_one_name() -> None:
    model = tower()
    code = code_of(model)
    assert code.obstacle is None
    model(torch.zeros(1, 3, 4, 4))
    assert not code.is_changed(model)
    assert code_of(model).digest == code_of(tower()).digest == code.digest


def of_torch(source: str, **names: Any) -> Callable[..., Any]:
    """Return a function that looks as if a module of torch had it."""
    space = vars(normalization)
    made: dict[str, Any] = {}
    exec(source, space, made)
    (function,) = made.values()
    return function(**names) if names else function  # type: ignore[no-any-return]


def attribute(model: nn.Sequential, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model[2], "eps", 0.1)


def order_of_modules(model: nn.Sequential, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(model._modules, "3", nn.Tanh())


def code(model: nn.Sequential, patch: pytest.MonkeyPatch) -> None:
    forward = of_torch("def forward(self, input):\n    return 2 * input")
    patch.setattr(nn.LayerNorm.forward, "__code__", forward.__code__)


def constant(model: nn.Sequential, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(nn.LayerNorm, "forward", of_torch("def forward(self, input):\n    return 3 * input"))


def default(model: nn.Sequential, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(nn.functional.layer_norm, "__defaults__", (None, None, 0.1))


def closure(model: nn.Sequential, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(nn.LayerNorm, "forward", of_torch("def made(scale):\n    return lambda self, x: scale * x", scale=2))


def function_that_is_named(model: nn.Sequential, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(nn.functional, "layer_norm", nn.functional.rms_norm)


OTHERS = [attribute, order_of_modules, code, constant, default, closure, function_that_is_named]


@pytest.mark.parametrize("change", OTHERS, ids=lambda change: change.__name__)
def test_what_differs_has_another_name(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[nn.Sequential, pytest.MonkeyPatch], None]
) -> None:
    model = tower()
    before = code_of(model)
    with monkeypatch.context() as patch:
        change(model, patch)
        changed = code_of(model)
        assert changed.digest != before.digest
        assert changed.obstacle is None
        # A module that was exchanged is seen by the watch of the weights.
        assert before.is_changed(model) or change is order_of_modules
    assert code_of(model).digest == before.digest


def test_closures_over_other_values_have_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    names = set()
    for scale in (1, 2, 1.0, "1", (1, 2), [1, 2], {"a": 1}, None, nn.functional.gelu, nn.functional.relu):
        monkeypatch.setattr(
            nn.GELU, "forward", of_torch("def made(scale):\n    return lambda self, x: scale", scale=scale)
        )
        named = code_of(tower())
        assert named.obstacle is None
        names.add(named.digest)
    assert len(names) == 10


def foreign(self: Any, values: Any) -> Any:
    return values


HOOK: Any = foreign


FOREIGN: dict[str, Callable[..., Any]] = {
    "a function of another module": foreign,
    "a part of one": functools.partial(foreign, None),
    "one that says that it is torch's": functools.wraps(nn.GELU.forward)(lambda self, values: values),
    "one with globals of its own": FunctionType(foreign.__code__, {"__name__": "torch.nn.modules.activation"}),
    "one that is called by torch's": of_torch("def made(f):\n    return lambda self, x: f(self, x)", f=foreign),
    "torch's, over a tensor": of_torch("def made(scale):\n    return lambda self, x: scale * x", scale=torch.ones(1)),
    "torch's, over a module": of_torch("def made(inner):\n    return lambda self, x: inner(x)", inner=nn.Linear(9, 9)),
}


@pytest.mark.parametrize("forward", FOREIGN.values(), ids=FOREIGN)
def test_what_cannot_be_seen_through_is_an_obstacle(
    monkeypatch: pytest.MonkeyPatch, forward: Callable[..., Any]
) -> None:
    model = tower()
    before = code_of(model)
    with monkeypatch.context() as patch:
        patch.setattr(nn.GELU, "forward", forward)
        assert before.is_changed(model)
        assert "GELU.forward" in str(code_of(model).obstacle)
    assert not before.is_changed(model)
    model[3].forward = forward
    assert before.is_changed(model)
    assert code_of(model).obstacle == "forward of 3, which is not its class's"


def test_a_foreign_class_is_an_obstacle() -> None:
    class Own(nn.GELU):
        """With the forward of its parent; what else it does is not known."""

    model = tower()
    before = code_of(model)
    model[3].__class__ = Own
    assert before.is_changed(model)
    assert "Own" in str(code_of(model).obstacle)


def test_what_a_function_calls_that_is_not_followed_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the page says: `LayerNorm.forward` names `functional.layer_norm`, and only that names `torch.layer_norm`."""
    model, pixels = tower(), torch.rand(1, 3, 4, 4)
    before, own = code_of(model), model(pixels)
    layer_norm = torch.layer_norm
    monkeypatch.setattr(torch, "layer_norm", lambda *values: 2 * layer_norm(*values))
    assert not torch.equal(model(pixels), own)
    assert not before.is_changed(model)
    assert code_of(model).digest == before.digest


def test_hooks_of_others_and_modes_come_between() -> None:
    model = tower()
    assert is_run_unchanged(model.modules())
    hook = model[0].register_forward_hook(HOOK)
    assert not is_run_unchanged(model.modules())
    hook.remove()
    hook = nn.modules.module.register_module_forward_pre_hook(HOOK)
    assert not is_run_unchanged(model.modules())
    hook.remove()
    with torch.device("cpu"):
        assert is_run_unchanged(model.modules())
    with torch.overrides.BaseTorchFunctionMode():
        assert not is_run_unchanged(model.modules())
    assert is_run_unchanged(model.modules())
