"""The frontend process (P0): answers clients, and owns the ring.

    server.py      the main loop of the process
    connections/   sockets, the ring, and the client of each connection
    store/         records that clients put and get

Requests are served by `mmcached.gateway`. Does not import torch. Names are imported on first use, because the frontend
of a store processes no images. Classes for vLLM's caches are in `mmcached.compat`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmcached.cache.hasher import MultiModalHasher
    from mmcached.compat.multimodal.factories import processor_cache_from_config, processor_only_cache_from_config
    from mmcached.compat.multimodal.sender_caches import MultiModalProcessorOnlyCache, MultiModalProcessorSenderCache
    from mmcached.compat.multimodal.shm_sender_cache import ShmObjectStoreSenderCache
    from mmcached.gateway.processing.processor import ImageProcessor

__all__ = [
    "ImageProcessor",
    "MultiModalHasher",
    "MultiModalProcessorOnlyCache",
    "MultiModalProcessorSenderCache",
    "ShmObjectStoreSenderCache",
    "processor_cache_from_config",
    "processor_only_cache_from_config",
]

_MODULES = {
    "ImageProcessor": "mmcached.gateway.processing.processor",
    "MultiModalHasher": "mmcached.cache.hasher",
    "MultiModalProcessorOnlyCache": "mmcached.compat.multimodal.sender_caches",
    "MultiModalProcessorSenderCache": "mmcached.compat.multimodal.sender_caches",
    "ShmObjectStoreSenderCache": "mmcached.compat.multimodal.shm_sender_cache",
    "processor_cache_from_config": "mmcached.compat.multimodal.factories",
    "processor_only_cache_from_config": "mmcached.compat.multimodal.factories",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
