"""Shares the outputs of a pipeline's encoders among all processes of a host that use diffusers.

    conditioning    `cached_conditioning`: the encoders of a pipeline run once per prompt or reference picture and host
    encoders        which classes are known, and the form of their outputs
    calls           the answer of one call, found or computed
    omni_plugin     the same encoders in vllm-omni's diffusion workers
    sglang_plugin   hooks of SGLang's diffusion servers
    sglang_stages   the store behind SGLang's conditioning cache
    output_trees    outputs of SGLang's stages as records

Importing it does not import diffusers; pipelines are handed in. The plug-ins do nothing without MMCACHED_CONDITIONING.
"""

from mmcached.integrations.diffusers.conditioning import Conditioning, cached_conditioning

__all__ = ["Conditioning", "cached_conditioning"]
