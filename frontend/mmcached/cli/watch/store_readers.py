"""Lists the processes that hold leases of a store's records, out of shared memory alone."""

from __future__ import annotations

from pathlib import Path

from mmcached.cli.admin.records import Reader, StoreOnlooker
from mmcached.wire.errors import MmcachedError


def store_readers(run_dir: Path) -> list[Reader]:
    """Return who holds leases; nobody if there is no store, or it is being made anew."""
    try:
        with StoreOnlooker(run_dir) as store:
            return store.readers()
    except (MmcachedError, OSError):
        return []
