"""Shares the outputs of text encoders among all processes of a host that use diffusers.

    conditioning    `cached_conditioning`: the text encoders of a pipeline run once per prompt and host

Importing it does not import diffusers; pipelines are handed in.
"""

from mmcached.integrations.diffusers.conditioning import Conditioning, cached_conditioning

__all__ = ["Conditioning", "cached_conditioning"]
