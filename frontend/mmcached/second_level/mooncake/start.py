"""Sets up Mooncake's own client. Importing this imports Mooncake and its system libraries."""

from __future__ import annotations

import os
from functools import partial

# Read when the library is loaded, or a client is set up. Levels below ERROR log every call; a call lasts up to its
# timeout, 30 s by default; and retries are made here.
for _name, _value in (("LOG_LEVEL", "ERROR"), ("RPC_TIMEOUT_MS", "5000"), ("STORE_CLIENT_SETUP_RETRIES", "1")):
    os.environ.setdefault(f"MC_{_name}", _value)

from mooncake.store import MooncakeDistributedStore, ReplicateConfig

from mmcached.second_level.backend import BackendError
from mmcached.second_level.mooncake.client import MooncakeClient
from mmcached.second_level.mooncake.master import reach
from mmcached.second_level.mooncake.place import MooncakePlace

EPOCH_COPIES = 2
"""Copies in the memory of different processes, if several lend memory: the epoch outlives one of them."""


def start(place: MooncakePlace) -> MooncakeClient:
    """Return a client that is registered with its master; BackendError if the master is absent or refuses it."""
    own_host = reach(place)
    store = MooncakeDistributedStore()
    status = store.setup(
        place.host or own_host, "P2PHANDSHAKE", place.segment_bytes, place.buffer_bytes, "tcp", "", place.master
    )
    if status:
        raise BackendError(f"Mooncake's client does not start with the master {place.master} (error {status})")
    pinned = ReplicateConfig()
    pinned.with_hard_pin = True
    pinned.replica_num = EPOCH_COPIES
    return MooncakeClient(store, pinned, partial(reach, place))
