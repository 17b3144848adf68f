"""Installs the adapter in a process of LMDeploy: wraps the method that encodes the images of a request.

install ──LMDeploy imports its engine of vision models──> share_features ──> async_infer goes through the store
"""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Any

from mmcached.integrations.after_import import after_import

_LOG = logging.getLogger("mmcached.lmdeploy")
ENGINE_MODULE = "lmdeploy.vl.engine"
_SHARED = "_mmcached_features"


def install(run_dir: str | None = None, *, namespace: str = "", max_save_mb: int = 256) -> None:
    """Share image features of the encoders that this process makes; imports nothing of LMDeploy.

    Args:
        run_dir: Run directory of the service; None for the default of `mmcached serve`.
        namespace: Name of the checkpoint's small files, for a checkpoint that is not on this host.
        max_save_mb: MiB of features that may wait to be saved.
    """

    def share(module: Any) -> None:
        share_features(module.ImageEncoder, run_dir, namespace=namespace, max_save_bytes=max_save_mb << 20)

    after_import(ENGINE_MODULE, share)


def share_features(encoder_class: Any, run_dir: str | None, **options: Any) -> None:
    """Wrap `async_infer` of LMDeploy's `ImageEncoder`.

    Args:
        options: As of `SharedFeatures`.
    """
    own = encoder_class.async_infer

    @functools.wraps(own)
    async def async_infer(encoder: Any, messages: list[Any]) -> Any:
        shared = vars(encoder).get(_SHARED)
        if shared is None:
            loop = asyncio.get_running_loop()
            # In the encoder's only thread: requests that come together must not make two, and it reads all weights.
            shared = await loop.run_in_executor(encoder.executor, _shared_of, encoder, run_dir, options)
        if shared is None:
            return await own(encoder, messages)
        return await shared.infer(messages, functools.partial(own, encoder))

    encoder_class.async_infer = async_infer


def _shared_of(encoder: Any, run_dir: str | None, options: dict[str, Any]) -> Any:
    """Return the `SharedFeatures` of an encoder, made with its first request; None if they cannot be made."""
    if _SHARED not in vars(encoder):
        from mmcached.integrations.lmdeploy.features import SharedFeatures

        vars(encoder)[_SHARED] = None
        try:
            vars(encoder)[_SHARED] = SharedFeatures(encoder, run_dir, **options)
            _LOG.info("mmcached: image features are shared with the LMDeploy processes of this host")
        except Exception as error:  # a model, or an LMDeploy, other than those that the adapter was written for
            _LOG.warning("mmcached: image features are not shared: %s: %s", type(error).__name__, error)
    return vars(encoder)[_SHARED]
