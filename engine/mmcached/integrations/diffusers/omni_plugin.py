"""Shares the outputs of encoders in vllm-omni's diffusion workers, as a plug-in that vllm-omni calls in each process.

    DiffusionModelRunner.load_model   ──> the pipeline's encoders are replaced, as by `cached_conditioning`
    DiffusionWorker.sleep             ──> restored, because memory of weights is released
    DiffusionWorker.wake_up           ──> replaced again, and their weights read again

MMCACHED_CONDITIONING=RUN_DIR   share outputs through this service; without it nothing happens
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

RUN_DIR = "MMCACHED_CONDITIONING"

_LOG = logging.getLogger("vllm.mmcached")
_OURS = "_mmcached_conditioning"
"""Attribute of a runner: what answers the calls of its pipeline's encoders, and the client."""


def register() -> None:
    """Replace methods of vllm-omni's diffusion workers in this process; a second call does nothing."""
    if not os.environ.get(RUN_DIR):
        return
    from vllm_omni.diffusion.worker.diffusion_model_runner import DiffusionModelRunner
    from vllm_omni.diffusion.worker.diffusion_worker import DiffusionWorker

    _replace(DiffusionModelRunner, "load_model", after=share)
    _replace(DiffusionWorker, "sleep", before=lambda worker: stop(worker.model_runner))
    _replace(DiffusionWorker, "wake_up", after=lambda worker: share(worker.model_runner))
    _replace(DiffusionWorker, "shutdown", before=lambda worker: stop(worker.model_runner))


def share(runner: Any) -> None:
    """Make the encoders of a runner's pipeline take their outputs from the store."""
    from mmcached.client import Client
    from mmcached.integrations.diffusers.conditioning import Conditioning

    stop(runner)
    pipeline = getattr(runner, "pipeline", None)
    if pipeline is None:
        return
    if runner.offload_backend is not None:
        _LOG.warning("mmcached: outputs of encoders are not shared: their weights are offloaded")
        return
    client = Client(Path(os.environ[RUN_DIR]), name="vllm-omni")
    conditioning = Conditioning(client, timeout_s=30.0)
    setattr(runner, _OURS, (conditioning, client))
    # A pipeline of diffusers inside vllm-omni's is an attribute of its adapter.
    conditioning.add_all(getattr(pipeline, "_pipeline", None) or pipeline)
    _LOG.info("mmcached: outputs of %d encoders are shared through %s", conditioning.num_encoders, client.run_dir)


def stop(runner: Any) -> None:
    """Restore the encoders of a runner's pipeline."""
    conditioning, client = getattr(runner, _OURS, (None, None))
    if conditioning is not None and client is not None:
        delattr(runner, _OURS)
        conditioning.close()
        client.close()


def _replace(
    owner: type,
    name: str,
    *,
    before: Callable[[Any], None] | None = None,
    after: Callable[[Any], None] | None = None,
) -> None:
    original = getattr(owner, name)
    if hasattr(original, "__wrapped__") and getattr(original, "_is_mmcached", False):
        return

    @functools.wraps(original)
    def replaced(self: Any, *values: Any, **named: Any) -> Any:
        if before is not None:
            before(self)
        result = original(self, *values, **named)
        if after is not None:
            after(self)
        return result

    replaced._is_mmcached = True  # type: ignore[attr-defined]
    setattr(owner, name, replaced)
