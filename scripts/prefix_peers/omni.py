"""Makes vllm-omni 0.22's prefix cache importable: the class's own module only, beside a vLLM of another version.

The package's `__init__` patches the vLLM that it was made for; an empty package with the same path stands in for it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from typing import Any

from ring_peers import vllm_imports
from ring_peers.transport import Unavailable

_PACKAGE = "vllm_omni"


def load() -> Any:
    """Return the class.

    Raises:
        Unavailable: vllm-omni or vLLM is not installed.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.submodule_search_locations is None:
        raise Unavailable("vllm-omni is not installed")
    vllm_imports.load()
    package = types.ModuleType(_PACKAGE)
    package.__path__ = list(spec.submodule_search_locations)
    before = sys.modules.get(_PACKAGE)
    sys.modules[_PACKAGE] = package
    try:
        return importlib.import_module(f"{_PACKAGE}.core.prefix_cache").OmniTensorPrefixCache
    finally:
        if before is not None:
            sys.modules[_PACKAGE] = before
