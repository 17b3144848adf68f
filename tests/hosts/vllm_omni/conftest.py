"""A client of a store that lives in a thread of the test, and what vllm-omni's own code needs."""

from __future__ import annotations

import importlib
import warnings

with warnings.catch_warnings():  # they say at import what a machine without a GPU does not have
    warnings.simplefilter("ignore")
    for module in ("vllm_omni.core.prefix_cache.runner_mixin", "vllm.v1.kv_cache_interface"):
        importlib.import_module(module)

from tests.hosts.transformers.conftest import client

__all__ = ["client"]
