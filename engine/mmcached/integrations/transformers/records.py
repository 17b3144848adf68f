"""Finds the records of many keys, and makes each missing one in one process while others wait for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from mmcached.client import Client
from mmcached.shm.store.codec import Library

Record = dict[str, Any]


def find_or_make(
    client: Client,
    keys: Sequence[str],
    make: Callable[[int], Record],
    *,
    is_right: Callable[[int, Any], bool],
    view: bool,
    timeout_s: float,
    tensors: Library = "torch",
) -> list[Record]:
    """Return the record of each key.

    A record of a wrong form is dropped and made anew: no process could use it. A sample of found records is made again,
    compared and replaced by the new ones: `mmcached verify`.

    Args:
        make: Returns the record of the key at a given index.
        is_right: Returns whether the record found for an index has the expected form.
        view: Leave the tensors of found records in the store's memory.
        timeout_s: How long to wait for another process that makes a record, before it is made here.
    """
    hits = client.get_many(keys, view=view, tensors=tensors)
    found: list[Record] = []
    made: set[int] = set()
    is_served = True

    def make_here(place: int) -> Record:
        made.add(place)
        return make(place)

    sampled = client.sampled(keys) if any(hits) else frozenset()
    for place, (key, hit) in enumerate(zip(keys, hits, strict=True)):
        if hit is not None and is_right(place, hit.record):
            if key in sampled:
                made_now = make_here(place)
                client.verified(key, hit.record, made_now)
            found.append(made_now if key in sampled else hit.record)
            continue
        if hit is not None:
            client.drop(key)
        record = None
        if is_served:
            num_failures = client.store_counters().failures
            compute = partial(make_here, place)
            record = client.get_or_compute(key, compute, view=view, tensors=tensors, timeout_s=timeout_s)
            # After one failure do not wait again with each further key.
            is_served = client.store_counters().failures == num_failures
        if place not in made and not (record is not None and is_right(place, record)):
            record = make_here(place)
        found.append(cast("Record", record))
    return found
