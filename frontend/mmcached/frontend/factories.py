"""Which processor cache a configuration asks for. A new kind of cache is one more row here."""

from __future__ import annotations

from mmcached.frontend.sender_cache import Grant, ShmObjectStoreSenderCache
from mmcached.shm import ObjectStoreWriter
from mmcached.wire.config import ServiceConfig


def processor_cache_from_config(
    config: ServiceConfig, store: ObjectStoreWriter | None, *, grant: Grant | None = None
) -> ShmObjectStoreSenderCache | None:
    """Return P0's processor cache, or None when it is switched off: then every item is processed and travels inline.

        not is_multimodal_model          None
        mm_processor_cache_gb = 0        None    (no ring either, so `store` is None)
        mm_processor_cache_type = "shm"  ShmObjectStoreSenderCache

    Args:
        store: of the ring that this process writes; None when there is no ring.
        grant: see `ShmObjectStoreSenderCache`.
    """
    if not config.is_multimodal_model or config.ring_data_bytes == 0 or store is None:
        return None
    return ShmObjectStoreSenderCache(config, store, grant=grant)
