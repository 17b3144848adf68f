"""The code of encoders that an engine wrote, such as vllm-omni's T5: named by versions, classes and settings.

Code of an engine chooses kernels by its platform and by global state, so a digest of what one call names would not say
what runs. Instead the versions of all packages that compute count, and of each module its class and its own plain
attributes. A function that was replaced in the engine's package without another version is not noticed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from blake3 import blake3

from mmcached.cache.output_names import PACKAGES

ENGINES = frozenset({"vllm", "vllm_omni", "sglang"})
"""Packages whose versions say which code they run."""
_KNOWN = frozenset({"torch", "transformers", "diffusers"}) | ENGINES | sys.stdlib_module_names
_OF_EVERY_MODULE = frozenset(torch.nn.Module().__dict__) - {"training"}
_LAZY = {"sglang": frozenset({"_forward_method"})}
"""Attributes that follow from a module's class and the kind of device, and that its first call sets."""
_SCALARS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, Enum)


def has_engine_modules(model: torch.nn.Module) -> bool:
    """Return whether a module of the model, or a base of its class, is of an engine."""
    kinds = {type(module) for module in model.modules()}
    return any(_package_of(each) in ENGINES for kind in kinds for each in kind.__mro__)


def packages_of(model: torch.nn.Module) -> tuple[str, ...]:
    """Return the packages whose versions count for a model."""
    if has_engine_modules(model):
        return tuple(sorted({*PACKAGES, "diffusers", "vllm-omni"}))
    return tuple(sorted({"transformers", _package_of(type(model))}))


class EngineCode:
    """Classes and settings of a model's modules, as they are now; no reference to the model is kept.

    Args:
        others: Names of the model's children that outputs do not depend on.
        method: The method of the model that computes outputs, which the adapter may have replaced.
        attention: Names of the attention functions that configurations select.

    Attributes:
        digest: Digest of the classes and settings, 64 hex digits.
        obstacle: Why outputs of this code cannot be shared; None if they can.
    """

    def __init__(
        self, model: torch.nn.Module, others: frozenset[str], method: str, attention: Iterable[str] = ()
    ) -> None:
        self.obstacle: str | None = None
        named = [(path, module) for path, module in model.named_modules() if path.split(".")[0] not in others]
        lines = [f"attention: {list(attention)}"]
        self._seen: list[tuple[dict[str, Any], frozenset[str], int, dict[str, Any]]] = []
        for path, module in named:
            kind = type(module)
            exempt = frozenset({method} if module is model else ()) | _LAZY.get(_package_of(kind), frozenset())
            settings = _settings(module.__dict__, exempt)
            lines.append(f"{path}: {_name_of(kind)} {sorted(settings.items())!r}")
            self._refuse(path or kind.__qualname__, module, exempt)
            self._seen.append((module.__dict__, exempt, len(module.__dict__.keys() - exempt), settings))
        self._kinds = [(module, type(module)) for _, module in named if module is not model]
        self.digest = blake3("\n".join(lines).encode()).hexdigest()

    def is_changed(self, model: torch.nn.Module) -> bool:
        """Return whether a class or a setting was replaced since."""
        return any(type(module) is not kind for module, kind in self._kinds) or any(
            len(holder.keys() - exempt) != size or _settings(holder, exempt) != settings
            for holder, exempt, size, settings in self._seen
        )

    def _refuse(self, place: str, module: torch.nn.Module, exempt: frozenset[str]) -> None:
        """Note the first reason why outputs of a module cannot be shared."""
        kind, reasons = type(module), []
        reasons += [_name_of(each) for each in kind.__mro__ if _package_of(each) not in _KNOWN]
        replaced = sorted({"forward", "__call__", "_call_impl"} & module.__dict__.keys() - exempt)
        reasons += [f"{name} of {place}, which is not its class's" for name in replaced]
        if module._compiled_call_impl is not None or kind.__qualname__ == "OptimizedModule":
            reasons.append(f"{place}, which is compiled")
        if "lora" in kind.__qualname__.lower():
            reasons.append(f"{place}, an adapter")
        unregistered = [name for name, value in module.__dict__.items() if _has_tensor(value)]
        reasons += [f"{place}.{name}, a tensor that is no parameter and no buffer" for name in unregistered]
        self.obstacle = self.obstacle or next(iter(reasons), None)


def _settings(holder: dict[str, Any], exempt: frozenset[str]) -> dict[str, Any]:
    return {
        name: _plain(value) for name, value in holder.items() if name not in _OF_EVERY_MODULE and name not in exempt
    }


def _plain(value: Any) -> Any:
    """Return a value's text; of an object only its class or its name."""
    if isinstance(value, _SCALARS):
        return repr(value)
    if type(value) in (tuple, list, torch.Size):
        return [_plain(each) for each in value]
    if isinstance(value, FunctionType | BuiltinFunctionType | MethodType | type):
        return f"{value.__module__}.{value.__qualname__}"
    return f"a {_name_of(type(value))}"


def _has_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (type(value) in (tuple, list) and any(map(_has_tensor, value)))


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _package_of(kind: type) -> str:
    return kind.__module__.partition(".")[0]
