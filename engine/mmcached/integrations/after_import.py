"""Changes a module of a host program when the program imports it, for hosts that load no plugins.

    after_import("host.module", change)      loaded already: change it now
                                             else: when it is imported, after its own code has run

Importing a host program only to change it would start its libraries in every Python process.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_LOG = logging.getLogger("mmcached")


def after_import(name: str, change: Callable[[Any], object]) -> None:
    """Call `change` with a module, once the module has been imported; an error of `change` is logged.

    Args:
        name: Full name of the module.
        change: Called once, in the thread that imports the module.
    """
    if (module := sys.modules.get(name)) is not None:
        _apply(change, module)
    else:
        sys.meta_path.insert(0, _Finder(name, change))


class _Finder(MetaPathFinder):
    def __init__(self, name: str, change: Callable[[Any], object]) -> None:
        self._name = name
        self._change = change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :]  # another change of the module may be among them
        found = (finder.find_spec(fullname, path, target) for finder in behind)
        spec = next((each for each in found if each is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._loaded)
        return spec

    def _loaded(self, module: ModuleType) -> None:
        # Not when it is found: programs also look whether a module exists, and may load what they have found later.
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            _apply(self._change, module)


class _Loader(Loader):
    def __init__(self, loader: Loader, then: Callable[[ModuleType], object]) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._then(module)


def _apply(change: Callable[[Any], object], module: ModuleType) -> None:
    try:
        change(module)
    except Exception:  # the host program runs without us
        _LOG.exception("mmcached: %s is not changed: nothing is shared", module.__name__)
