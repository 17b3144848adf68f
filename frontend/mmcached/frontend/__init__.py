"""The frontend process (P0): the loop, the connections of clients, and the store of their records.

    server.py           the main loop; start here
    client_messages.py  hands each message of a client to the part that serves it
    connections/        the clients' socket, and the ring
    store/              records that clients put and get
    flushes.py          flushes of all caches, one round at a time (rounds.py)
    mount.py            the interface of a gateway, which serves requests for computed results
    store_alone.py      the gateway of a service without workers

Imports nothing of `mmcached.gateway`, and no torch. The published names, such as `ImageProcessor`, are imported on
first use; classes for vLLM's caches are in `mmcached.compat`.
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
