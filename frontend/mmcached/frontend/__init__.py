"""P0: what happens to a request before an engine sees it, and the one process per host in which it happens.

    hasher                content keys, from the encoded bytes
    decoder_pool          files to scaled pixels, in processes; or a typed error
    processor             pixels to patches
    prompt                text to tokens, markers to placeholders
    sender_cache          processed items in the ring                       mode shm
    lru_sender_cache      the mirror of what the engine holds               mode lru
    processor_only_cache  processed items, here                             mode processor_only
    factories, routes     which cache a configuration asks for, and how an item then travels
    engine_gate           the engines: attaching, leases, deaths
    server                the process: clients on one side, engines on the other

Imports no torch.
"""

from mmcached.frontend.factories import processor_cache_from_config, processor_only_cache_from_config
from mmcached.frontend.hasher import MultiModalHasher
from mmcached.frontend.lru_sender_cache import MultiModalProcessorSenderCache
from mmcached.frontend.processor import ImageProcessor
from mmcached.frontend.processor_only_cache import MultiModalProcessorOnlyCache
from mmcached.frontend.sender_cache import ShmObjectStoreSenderCache

__all__ = [
    "ImageProcessor",
    "MultiModalHasher",
    "MultiModalProcessorOnlyCache",
    "MultiModalProcessorSenderCache",
    "ShmObjectStoreSenderCache",
    "processor_cache_from_config",
    "processor_only_cache_from_config",
]
