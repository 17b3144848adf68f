"""Brings in the peers: makes vLLM's and vllm-omni's modules importable, connects to Redis.

All this on a machine without an accelerator and without most of what they depend on. vLLM 0.33's modules import, at
their top, packages that what is measured never calls. For those that are missing *and* in the list below, a finder at
the end of `sys.meta_path` serves empty stand-ins; what is installed is never replaced. Of vllm-omni 0.22 the prefix
cache's own module is imported, beside a vLLM of another version: the package's `__init__` patches the vLLM that it was
made for, so an empty package with the same path stands in for it. Of 0.30 its package is imported in the same way, out
of a folder of its own. Redis is spoken to through redis-py; `mmcached bench` starts the
server, and speaks to it by a socket and nothing else.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from scripts.bench.harness import Unavailable

DEADLINE_S = 60.0
SETTINGS = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_TARGET_DEVICE": "cpu",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
_OMNI = "vllm_omni"
OMNI_MANAGER = "vllm-omni-0.30"
"""The folder of a second vllm-omni in the environment: `pip install --no-deps --target`, see the Makefile."""
STAND_INS = frozenset(
    (
        "anthropic",
        "cpuinfo",
        "depyf",
        "fastapi",
        "ijson",
        "lark",
        "llguidance",
        "lmformatenforcer",
        "mcp",
        "ninja",
        "openai",
        "openai_harmony",
        "opentelemetry",
        "orjson",
        "outlines_core",
        "partial_json_parser",
        "prometheus_client",
        "prometheus_fastapi_instrumentator",
        "setproctitle",
        "starlette",
        "uvicorn",
        "uvloop",
        "watchfiles",
        "xgrammar",
    )
)


def load_vllm() -> tuple[Any, Any]:
    """Return vLLM's modules of the object store and of multimodal inputs.

    Raises:
        Unavailable: vLLM is not installed.
    """
    if importlib.util.find_spec("vllm") is None:
        raise Unavailable("vllm is not installed")
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if not any(isinstance(finder, _StandInFinder) for finder in sys.meta_path):
        sys.meta_path.append(_StandInFinder())
    store = importlib.import_module("vllm.distributed.device_communicators.shm_object_storage")
    return store, importlib.import_module("vllm.multimodal.inputs")


def load_omni_class() -> Any:
    """Return vllm-omni's `OmniTensorPrefixCache`.

    Raises:
        Unavailable: vllm-omni or vLLM is not installed.
    """
    spec = importlib.util.find_spec(_OMNI)
    if spec is None or spec.submodule_search_locations is None:
        raise Unavailable("vllm-omni is not installed")
    load_vllm()
    package = types.ModuleType(_OMNI)
    package.__path__ = list(spec.submodule_search_locations)
    before = sys.modules.get(_OMNI)
    sys.modules[_OMNI] = package
    try:
        return importlib.import_module(f"{_OMNI}.core.prefix_cache").OmniTensorPrefixCache
    finally:
        if before is not None:
            sys.modules[_OMNI] = before


def load_omni_manager() -> Any:
    """Return the package of vllm-omni 0.30's prefix cache manager, imported beside the 0.22 that is installed.

    Raises:
        Unavailable: it is not in the environment.
    """
    folder = Path(sys.prefix) / OMNI_MANAGER / _OMNI
    if not folder.exists():
        raise Unavailable("vllm-omni 0.30 is not installed")
    others = _take_modules(_OMNI)
    try:
        for name, path in ((_OMNI, folder), (f"{_OMNI}.core", folder / "core")):
            sys.modules[name] = package = types.ModuleType(name)
            package.__path__ = [str(path)]
        return importlib.import_module(f"{_OMNI}.core.prefix_cache")
    finally:
        _take_modules(_OMNI)
        sys.modules.update(others)


def _take_modules(package: str) -> dict[str, types.ModuleType]:
    """Take a package and all below it out of `sys.modules`, and return them."""
    names = [name for name in sys.modules if name.partition(".")[0] == package]
    return {name: sys.modules.pop(name) for name in names}


class _StandInFinder(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in STAND_INS:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        module = _StandIn(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _AnyAttribute(type):
    """The type of stand-in classes: every public attribute is one more of them."""

    def __getattr__(cls, name: str) -> type:
        return _stand_in_class(name)


class _StandIn(types.ModuleType):
    def __getattr__(self, name: str) -> type:
        made = _stand_in_class(name)
        setattr(self, name, made)
        return made


def _stand_in_class(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    body = {
        "__init__": lambda self, *args, **kwargs: None,
        "__class_getitem__": classmethod(lambda cls, item: cls),
        # As a decorator it leaves the function as it is.
        "__call__": lambda self, *args, **kwargs: args[0] if args and callable(args[0]) else None,
        "__get_pydantic_core_schema__": classmethod(_any_schema),
    }
    return _AnyAttribute(name, (), body)


def _any_schema(cls: type, source: object, handler: object) -> object:
    return importlib.import_module("pydantic_core.core_schema").any_schema()


# ---- Redis


def has_redis_client() -> bool:
    return importlib.util.find_spec("redis") is not None


def connect_redis(path: str) -> Any:
    """Return a client of redis-py.

    Raises:
        Unavailable: it is not installed.
    """
    if not has_redis_client():
        raise Unavailable("the Python package redis is not installed")
    return importlib.import_module("redis").Redis(unix_socket_path=path, socket_timeout=DEADLINE_S)


# ---- files of tensors


def safetensors_loader(path: Path, array: Any) -> Callable[[], Any] | None:
    """Write one array to a file, and return what looks for it and loads it in place; None: it is not installed."""
    if importlib.util.find_spec("safetensors") is None:
        return None
    import torch

    safetensors = importlib.import_module("safetensors.torch")
    safetensors.save_file({"x": torch.from_numpy(array)}, path)
    return lambda: safetensors.load_file(path)["x"][-1] if path.exists() else None
