"""Lists the processes that hold leases on a store's records, from shared memory alone."""

from __future__ import annotations

from pathlib import Path

from mmcached.cli.admin.records import Reader, StoreOnlooker
from mmcached.wire.errors import MmcachedError


def store_readers(run_dir: Path) -> list[Reader]:
    """Return the processes with leases; empty if there is no store, or it is being replaced."""
    try:
        with StoreOnlooker(run_dir) as store:
            return store.readers()
    except (MmcachedError, OSError):
        return []
