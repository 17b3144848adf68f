"""Finds the records of many keys, and makes those that are missing: each in one process, while others wait for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mmcached.client import Client
from mmcached.shm.store.codec import Library

Record = dict[str, Any]


def find_or_make(
    client: Client,
    keys: Sequence[str],
    make: Callable[[int], Record],
    *,
    view: bool,
    timeout_s: float,
    tensors: Library = "torch",
) -> list[Record]:
    """Return the record of each key.

    Args:
        make: returns the record of a key, which it is told by its place.
        view: tensors of records that were found lie in the store's memory.
        timeout_s: how long to wait for another process that makes a record; then it is made here.
    """
    hits = client.get_many(keys, view=view, tensors=tensors)
    found: list[Record] = []
    is_served = True
    for place, (key, hit) in enumerate(zip(keys, hits, strict=True)):
        if hit is not None:
            found.append(hit.record)
        elif is_served:
            num_failures = client.store_counters().failures
            computed = client.get_or_compute(key, partial(make, place), view=view, tensors=tensors, timeout_s=timeout_s)
            found.append(computed)
            # What was waited for in vain once would be waited for again with each key.
            is_served = client.store_counters().failures == num_failures
        else:
            found.append(make(place))
    return found
