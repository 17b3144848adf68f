"""Chooses the kind of processor cache for a service's configuration.

    not is_multimodal_model, or mm_processor_cache_gb = 0      off
    mm_processor_cache_type = "processor_only"                 processor_only
    mm_processor_cache_type = "shm"                            shm               serves any number of engines
    mm_processor_cache_type = "lru"                            lru               if one sender has one receiver,
                                                               processor_only    else: a mirror has two ends

One sender has one receiver when there is one API process, and one engine behind it: either there is only one
(`data_parallel_size` = 1), or an external balancer gives each engine its own service (`data_parallel_external_lb`).

Source: vLLM's factories, where the balancer alone was enough: several API processes then shared one receiver.
"""

from __future__ import annotations

from typing import Literal

from mmcached.wire.config import ServiceConfig

ProcessorCacheKind = Literal["off", "processor_only", "lru", "shm"]
SMALL_SHARE = 16
"""In mode `shm`, small items kept beside the ring take at most 1 / `SMALL_SHARE` of the items' share."""


def processor_cache_kind(config: ServiceConfig) -> ProcessorCacheKind:
    if not config.is_multimodal_model or config.processor_cache_bytes == 0:
        return "off"
    if config.mm_processor_cache_type == "lru" and not _can_mirror(config):
        return "processor_only"
    return config.mm_processor_cache_type


def _can_mirror(config: ServiceConfig) -> bool:
    has_one_receiver = config.data_parallel_size == 1 or config.data_parallel_external_lb
    return config._api_process_count == 1 and has_one_receiver
