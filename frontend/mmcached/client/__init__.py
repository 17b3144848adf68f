"""What a host program imports to use the service: `Client` for threads, `AsyncClient` for asyncio.

Importing it does not import torch; a call that returns tensors does.
"""

from mmcached.client.asynchronous import AsyncClient
from mmcached.client.fail_open import StoreCounters
from mmcached.client.hits import Hit
from mmcached.client.kv_events import KVEventSubscriber
from mmcached.client.results import Generation, ImageLike, RowRange
from mmcached.client.synchronous import Client
from mmcached.wire.messages.parts import RowsWanted

__all__ = [
    "AsyncClient",
    "Client",
    "Generation",
    "Hit",
    "ImageLike",
    "KVEventSubscriber",
    "RowRange",
    "RowsWanted",
    "StoreCounters",
]
