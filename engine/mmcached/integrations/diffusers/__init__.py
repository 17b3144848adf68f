"""Shares the outputs of a pipeline's encoders among all processes of a host that use diffusers.

    conditioning    `cached_conditioning`: the encoders of a pipeline run once per prompt or reference picture and host
    encoders        which classes are known, and the form of their outputs

Importing it does not import diffusers; pipelines are handed in.
"""

from mmcached.integrations.diffusers.conditioning import Conditioning, cached_conditioning

__all__ = ["Conditioning", "cached_conditioning"]
