"""Installs the shared processor cache in vLLM's servers, as a plug-in that vLLM calls in each process.

    each        `BaseMultiModalProcessor`           marks hashes of names, see `mmcached.integrations.vllm`; always
    API process   `processor_cache_from_config`         `MmcachedProcessorCache` before vLLM's own cache
    API process   `VIDEO_LOADER_REGISTRY`               loaders that look for a film's frames in the store
    engine        `engine_receiver_cache_from_config`   `MmcachedReceiverCache` before vLLM's own cache

MMCACHED_PROCESSED_INPUTS=RUN_DIR           share items through this service; without it none are shared
MMCACHED_PROCESSED_INPUTS_COUNTS_ONLY=1     keep no pixels
MMCACHED_PROCESSED_INPUTS_NAMED=1           also share items that clients have named
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mmcached.integrations.after_import import after_import

RUN_DIR = "MMCACHED_PROCESSED_INPUTS"
COUNTS_ONLY = "MMCACHED_PROCESSED_INPUTS_COUNTS_ONLY"
NAMED = "MMCACHED_PROCESSED_INPUTS_NAMED"

_LOG = logging.getLogger("vllm.mmcached")


def register() -> None:
    """Put the shared cache before vLLM's own in this process; vLLM calls this at the start of each."""
    after_import("vllm.multimodal.processing.processor", _mark_hashed_names)
    run_dir = os.environ.get(RUN_DIR)
    if not run_dir:
        return
    from vllm.multimodal import cache
    from vllm.multimodal.processing import BaseMultiModalProcessor
    from vllm.multimodal.registry import MultiModalRegistry
    from vllm.multimodal.video import VIDEO_LOADER_REGISTRY
    from vllm.renderers import base

    from mmcached.integrations.processed_inputs.vllm_films import SharedFilms, share_films
    from mmcached.integrations.processed_inputs.vllm_named import note_named_items

    sender = functools.partial(_sender, Path(run_dir))
    for name in ("processor_cache_from_config", "processor_only_cache_from_config"):
        # Functions of a module since 0.32, methods before.
        _replace([base if hasattr(base, name) else MultiModalRegistry], name, sender)
    name = "engine_receiver_cache_from_config"
    # The engine's module is imported after this in the API process, and before it in the engine's.
    owners = [cache, sys.modules.get("vllm.v1.engine.core")] if hasattr(cache, name) else [MultiModalRegistry]
    _replace([each for each in owners if each is not None], name, functools.partial(_receiver, Path(run_dir)))
    note_named_items(BaseMultiModalProcessor)
    share_films(VIDEO_LOADER_REGISTRY.name2class, functools.cache(lambda: SharedFilms(_client(Path(run_dir)))))


def _mark_hashed_names(module: Any) -> None:
    from mmcached.integrations.vllm.named_hashes import mark_hashed_names

    mark_hashed_names(module)


def _replace(owners: Sequence[Any], name: str, shared: Callable[[Any, Any], Any]) -> None:
    """Replace a factory of vLLM by a factory that gets the configuration and what vLLM's made of it."""
    for owner in owners:
        make = getattr(owner, name)
        if not hasattr(make, "__wrapped__"):
            setattr(owner, name, _after(make, shared))


def _after(make: Callable[..., Any], shared: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def made(*values: Any) -> Any:
        return shared(values[-1], make(*values))

    return made


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "") not in ("", "0")


def _client(run_dir: Path, name: str = "render") -> Any:
    from mmcached.client import Client

    return Client(run_dir, name=name)


def _sender(run_dir: Path, vllm_config: Any, own: Any) -> Any:
    """Return the cache of the API process; None where vLLM has none."""
    from vllm.multimodal.cache import MultiModalProcessorOnlyCache

    from mmcached.integrations.processed_inputs.vllm_cache import MmcachedProcessorCache

    if own is None:
        return None
    _LOG.info("processed items are shared through %s", run_dir)
    return MmcachedProcessorCache(
        vllm_config.model_config,
        _client(run_dir),
        own=own,
        counts_only=type(own) is MultiModalProcessorOnlyCache and _is_on(COUNTS_ONLY),
        has_named=_is_on(NAMED),
    )


def _receiver(run_dir: Path, vllm_config: Any, own: Any) -> Any:
    """Return the cache of the engine process. Where vLLM has none, its client connects when the first handle comes."""
    from mmcached.integrations.processed_inputs.vllm_handles import MmcachedReceiverCache

    return MmcachedReceiverCache(_client(run_dir, "vllm"), own)
