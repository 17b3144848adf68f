"""Installs the shared processor cache in vLLM's servers, as a plug-in that vLLM calls in each process.

MMCACHED_PROCESSED_INPUTS=RUN_DIR           share items through this service; without it nothing happens
MMCACHED_PROCESSED_INPUTS_COUNTS_ONLY=1     keep no pixels
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

RUN_DIR = "MMCACHED_PROCESSED_INPUTS"
COUNTS_ONLY = "MMCACHED_PROCESSED_INPUTS_COUNTS_ONLY"

_LOG = logging.getLogger("vllm.mmcached")


def register() -> None:
    """Replace vLLM's in-process processor cache by the shared one; vLLM calls this at its start."""
    run_dir = os.environ.get(RUN_DIR)
    if not run_dir:
        return
    from vllm.renderers import base

    for name in ("processor_cache_from_config", "processor_only_cache_from_config"):
        make = getattr(base, name)
        if not hasattr(make, "__wrapped__"):
            setattr(base, name, _shared(make, Path(run_dir)))


def _shared(make: Callable[[Any], Any], run_dir: Path) -> Callable[[Any], Any]:
    @functools.wraps(make)
    def shared(vllm_config: Any) -> Any:
        from vllm.multimodal.cache import MultiModalProcessorOnlyCache

        from mmcached.client import Client
        from mmcached.integrations.processed_inputs.vllm_cache import MmcachedProcessorCache

        cache = make(vllm_config)
        if type(cache) is not MultiModalProcessorOnlyCache:
            return cache
        _LOG.info("processed items are shared through %s", run_dir)
        counts_only = os.environ.get(COUNTS_ONLY, "") not in ("", "0")
        return MmcachedProcessorCache(vllm_config.model_config, Client(run_dir, name="render"), counts_only=counts_only)

    return shared
