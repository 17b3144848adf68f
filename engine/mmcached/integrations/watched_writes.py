"""Notices writes to a tower that its worker makes without a call, between two readings of its bytes.

    `load_weights` of the model or a part   counted: it writes through `.data`, where torch counts nothing
    a parameter, buffer or module replaced  another object in its place
    `parameter.data = other`                another address
    in-place operations on a parameter      torch's count of its changes

Looked at in a step that loads or saves, before it does. Writes through `.data`, `detach().numpy()` or another process
show in none of these.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any
from weakref import WeakValueDictionary

import torch

_WATCHED = "_mmcached_watches"
_version = operator.attrgetter("_version")


class WatchedWrites:
    """The tower of one engine in one worker, as it was when its bytes were last read. Lives as long as its model."""

    def __init__(self) -> None:
        self._num_loads = 0
        self._num_seen = 0
        # Three lists of one length: a dict of a module, a name in it, and the tensor or module that was there.
        self._holders: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._objects: list[Any] = []
        self._counting: list[torch.Tensor] = []
        self._plain: list[torch.Tensor] = []
        self._seen: Any = None

    def begin(self, model: torch.nn.Module, names: Set[str]) -> None:
        """Note the state of a model's tensors, see `watch_writes`."""
        self._num_seen = self._num_loads
        modules = dict(model.named_modules(remove_duplicate=False))
        paths = modules.keys() & ({""} | {path for name in names for path in _parents(name)})
        self._count_loads_of(modules[path] for path in paths)
        places = [
            (holder, name, value)
            for path in sorted(paths)
            for holder, counted in _holders(modules[path], names, paths)
            for name, value in holder.items()
            if (f"{path}.{name}" if path else name) in counted
        ]
        self._holders = [holder for holder, _, _ in places]
        self._names = [name for _, name, _ in places]
        self._objects = [value for _, _, value in places]
        tensors = [value for value in self._objects if isinstance(value, torch.Tensor)]
        self._counting = [value for value in tensors if not value.is_inference()]  # torch counts no changes of others
        self._plain = [
            value for value in tensors if not hasattr(value, "__tensor_flatten__")
        ]  # packed ones have no address
        self._seen = self._look()

    def is_written(self) -> bool:
        return (
            self._num_loads != self._num_seen
            or not all(map(operator.is_, map(dict.get, self._holders, self._names), self._objects))
            or self._look() != self._seen
        )

    def _look(self) -> Any:
        with torch._C.DisableTorchFunctionSubclass():  # vLLM's classes of parameters: many times faster
            return list(map(_version, self._counting)), list(map(torch.Tensor.data_ptr, self._plain))

    def _count_loads_of(self, modules: Iterable[torch.nn.Module]) -> None:
        for module in modules:
            load = getattr(module, "load_weights", None)
            if load is not None and not hasattr(load, _WATCHED):
                module.load_weights = self._counted(load)

    def _counted(self, load: Callable[..., Any]) -> Any:
        @functools.wraps(load)
        def load_weights(*values: Any, **named: Any) -> Any:
            try:
                return load(*values, **named)
            finally:
                self._num_loads += 1

        setattr(load_weights, _WATCHED, True)
        return load_weights


_BY_ENGINE: WeakValueDictionary[str | None, WatchedWrites] = WeakValueDictionary()


def watch_writes(engine_id: str | None, model: torch.nn.Module, names: Set[str]) -> None:
    """Note writes to an engine's tower from now on; its bytes must be read after this call, not before.

    Args:
        engine_id: vLLM's name of its connector.
        names: Names of the tensors that count, as in the state of the model.
    """
    writes = vars(model).setdefault("_mmcached_writes", WatchedWrites())
    _BY_ENGINE[engine_id] = writes
    writes.begin(model, names)


def is_written(engine_id: str | None) -> bool:
    """Return whether an engine's tower may have other weights than when it was last read in this process."""
    writes = _BY_ENGINE.get(engine_id)
    return writes is not None and writes.is_written()


def _holders(module: torch.nn.Module, names: Set[str], paths: Set[str]) -> tuple[tuple[dict[str, Any], Set[str]], ...]:
    """Return the dicts of a module, each with the full names that count in it."""
    return (module._modules, paths), (module._parameters, names), (module._buffers, names)


def _parents(name: str) -> Iterator[str]:
    """Yield the path of each module above a tensor.

    >>> list(_parents("visual.blocks.0.weight"))
    ['visual.blocks.0', 'visual.blocks', 'visual']
    """
    while name := name.rpartition(".")[0]:
        yield name
