"""Shares conditioning between SGLang's diffusion servers, as a plug-in that SGLang calls in each of their processes.

    ConditioningCache.run          what it computes is first looked for in the store: `sglang_stages`
    ConditioningCache.invalidate   weights change: their names are forgotten
    DiffusersPipeline              the encoders of a pipeline of diffusers are replaced

MMCACHED_CONDITIONING=RUN_DIR   share outputs through this service; without it nothing happens
"""

from __future__ import annotations

import os
from importlib import metadata

from mmcached.integrations.sglang.plugin import check_version

RUN_DIR = "MMCACHED_CONDITIONING"
CACHE = "sglang.multimodal_gen.runtime.cache.conditioning.ConditioningCache"
LOADS = "sglang.multimodal_gen.runtime.pipelines.diffusers_pipeline.DiffusersPipeline._load_diffusers_pipeline"


def register() -> None:
    """Register hooks of SGLang's conditioning cache; SGLang applies them before it loads a model.

    Raises:
        ConfigError: This version of SGLang is not supported.
    """
    if not os.environ.get(RUN_DIR):
        return
    check_version(metadata.version("sglang"), RUN_DIR)
    from sglang.multimodal_gen.runtime.platforms.plugins import HookRegistry, HookType

    from mmcached.integrations.diffusers import sglang_stages

    HookRegistry.register(f"{CACHE}.invalidate", sglang_stages.forget_before_invalidate, HookType.BEFORE)
    HookRegistry.register(f"{CACHE}.run", sglang_stages.run_with_store, HookType.AROUND)
    HookRegistry.register(LOADS, sglang_stages.share_pipeline, HookType.AFTER)
