"""Describes outputs of an engine's stages, nested containers of tensors, as records, and makes outputs of records.

output ──> tensors, each once | tree: containers and plain values, with the places of tensors
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from mmcached.integrations.record_form import PartForm

_PLAIN = (type(None), bool, int, float, str)
_PACKAGES = frozenset({"sglang", "transformers", "diffusers"})
"""Packages whose classes of outputs are described."""
_POSTERIOR = "DiagonalGaussianDistribution"


class NotDescribed(TypeError):
    """An output has a value that no record describes."""


def record_of(output: Any) -> dict[str, Any]:
    """Return the record of an output: its tensors, and the tree.

    Raises:
        NotDescribed: A value is of an unknown class, or the tensors are on several devices, or there are none.
    """
    tensors: list[torch.Tensor] = []
    tree = _tree(output, tensors)
    if len({tensor.device for tensor in tensors}) != 1:
        raise NotDescribed(f"tensors on {len({tensor.device for tensor in tensors})} devices")
    return {"tensors": tensors, "tree": tree}


def output_of(record: Mapping[str, Any]) -> Any:
    """Return the output that `record_of` has described."""
    return _value(record["tree"], record["tensors"])


def check_record(record: Any) -> str | None:
    """Return why a record in host memory describes no output; None if it does."""
    try:
        tensors = record["tensors"]
        _value(record["tree"], tensors)
        reasons = [PartForm.of(each).check(each) for each in tensors]
    except Exception as error:  # a class of outputs may refuse its parts with any error
        return f"no tree of tensors: {error!r}"
    return next(filter(None, reasons), None)


def _tree(value: Any, tensors: list[torch.Tensor]) -> list[Any]:
    """Return the tree of a value; its tensors are added to `tensors`, each once."""
    if type(value) is torch.Tensor and not value.requires_grad:
        place = next((place for place, each in enumerate(tensors) if each is value), len(tensors))
        tensors += [] if place < len(tensors) else [value]
        return ["tensor", place]
    if type(value) in _PLAIN:
        return ["plain", value]
    if isinstance(value, torch.dtype):
        return ["dtype", str(value).removeprefix("torch.")]
    if type(value) in (list, tuple):
        return [type(value).__name__, [_tree(each, tensors) for each in value]]
    if type(value) is dict and all(type(name) is str for name in value):
        return ["dict", _pairs(value.items(), tensors)]
    kind = type(value)
    if kind.__module__.partition(".")[0] in _PACKAGES and "." not in kind.__qualname__:
        if kind.__name__ == _POSTERIOR:
            parts = {"parameters": value.parameters, "deterministic": value.deterministic}
            return ["object", kind.__module__, kind.__name__, _pairs(parts.items(), tensors)]
        if is_dataclass(kind):
            parts = {field.name: vars(value)[field.name] for field in fields(kind)}
            return ["object", kind.__module__, kind.__name__, _pairs(parts.items(), tensors)]
    raise NotDescribed(f"a {kind.__module__}.{kind.__qualname__}")


def _pairs(items: Iterable[tuple[str, Any]], tensors: list[torch.Tensor]) -> list[Any]:
    return [[name, _tree(value, tensors)] for name, value in items]


def _value(tree: Any, tensors: Any) -> Any:
    kind, *rest = tree
    if kind == "tensor":
        return tensors[rest[0]]
    if kind == "plain":
        return rest[0]
    if kind == "dtype":
        return _checked(getattr(torch, rest[0]), torch.dtype)
    if kind in ("list", "tuple"):
        values = [_value(each, tensors) for each in rest[0]]
        return values if kind == "list" else tuple(values)
    if kind == "dict":
        return {name: _value(each, tensors) for name, each in rest[0]}
    module, name, parts = rest
    if kind != "object" or module.partition(".")[0] not in _PACKAGES:
        raise NotDescribed(f"{kind} {module}")
    # The class of a call's output is there, as its module computes.
    found = _checked(getattr(sys.modules[module], name), type)
    if not is_dataclass(found) and found.__name__ != _POSTERIOR:
        raise NotDescribed(f"{module}.{name}")
    return found(**{part: _value(each, tensors) for part, each in parts})


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise NotDescribed(f"{value!r}")
    return value
