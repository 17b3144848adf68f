"""Sizes of a service's ring: one share for the records of clients, and one for processed items.

Some of its slots are for records in nurseries (files into which clients write large records).
"""

from __future__ import annotations

from mmcached.shm.ring.key_index import index_words
from mmcached.shm.segment.layout import ALIGNMENT, MAX_READERS, SLOT_BITS, Layout
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages.parts import MIN_PLACED_BYTES


def num_nursery_slots(config: ServiceConfig) -> int:
    """Return the number of records that can lie in nurseries at a time."""
    largest = min(config.store_num_slots, 1 << (SLOT_BITS - 2))
    return min(config.store_nursery_bytes // MIN_PLACED_BYTES, largest)


def service_layout(config: ServiceConfig) -> Layout | None:
    """Return the layout of a service's ring; None if it keeps nothing in shared memory.

    Each engine and worker has an entry in addition to those of the clients.
    """
    data_bytes = config.store_main_bytes + config.ring_data_bytes
    if not data_bytes:
        return None
    num_slots = config.store_num_slots * bool(config.store_data_bytes)
    num_slots += config.ring_num_slots * bool(config.ring_data_bytes)
    num_slots = min(num_slots + num_nursery_slots(config), 1 << SLOT_BITS)
    num_readers = config.store_max_clients + config.num_engines * (1 + config.world_size)
    return Layout(data_bytes - data_bytes % ALIGNMENT, num_slots, min(num_readers, MAX_READERS), index_words(num_slots))
