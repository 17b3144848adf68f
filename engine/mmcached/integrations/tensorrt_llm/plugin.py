"""Installs the adapter in a process of TensorRT-LLM: wraps the getter of a model's encoder cache.

install ──TensorRT-LLM imports its mixin──> share_caches ──> the getter gives each cache of a model the store
"""

from __future__ import annotations

import functools
import logging
from inspect import signature
from typing import Any

from mmcached.integrations.after_import import after_import

_LOG = logging.getLogger("mmcached.tensorrt_llm")
MIXIN_MODULE = "tensorrt_llm._torch.models.modeling_multimodal_mixin"
MIXIN = "MultimodalModelMixin"
GETTER = "_get_multimodal_encoder_cache"
_SHARED = "_mmcached_encoder_cache"


def install(
    run_dir: str | None = None, *, namespace: str = "", max_save_mb: int = 256, max_pinned_mb: int = 2048
) -> None:
    """Share encoder outputs of the models that this process makes from now on; imports nothing of TensorRT-LLM.

    Args:
        run_dir: Run directory of the service; None for the default of `mmcached serve`.
        namespace: Name of the checkpoint's small files, for a checkpoint that is not on this host.
        max_save_mb: MiB of outputs that may wait to be saved.
        max_pinned_mb: MiB of the store's memory that a rank pins with CUDA, where it reads repeatedly; 0: none.
    """

    def share(module: Any) -> None:
        from mmcached.integrations.tensorrt_llm.encoder_cache import SharingSettings

        settings = SharingSettings(run_dir, namespace, max_save_mb << 20, max_pinned_mb << 20)
        share_caches(getattr(module, MIXIN), settings)

    after_import(MIXIN_MODULE, share)


def share_caches(mixin: type, settings: Any) -> None:
    """Wrap the getter of a class of models, so that each cache that it returns has the store behind it.

    Args:
        settings: A `SharingSettings`.
    """
    from mmcached.integrations.tensorrt_llm.encoder_cache import SharedEncoderCache

    getter = getattr(mixin, GETTER, None)
    if getter is None:
        _LOG.warning("mmcached: encoder outputs are not shared: this TensorRT-LLM has no encoder cache")
        return

    @functools.wraps(getter)
    def shared(model: Any) -> Any:
        own = getter(model)
        if own is not None and _SHARED not in vars(model):
            vars(model)[_SHARED] = None  # is not tried again
            if not _is_known(own):
                _LOG.warning("mmcached: encoder outputs are not shared: this TensorRT-LLM's cache has other arguments")
                return own
            try:
                vars(model)[_SHARED] = SharedEncoderCache(own, model, settings)
            except Exception:  # a TensorRT-LLM that differs from those that the adapter was written for
                _LOG.exception("mmcached: encoder outputs are not shared")
        return own

    setattr(mixin, GETTER, shared)


def _is_known(cache: Any) -> bool:
    """Return whether the two methods that are replaced have no arguments other than key and value."""
    return [*signature(cache.get).parameters] == ["key"] and [*signature(cache.put).parameters] == ["key", "value"]
