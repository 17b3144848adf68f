"""The ring against memcpy: how much a put costs beyond copying the bytes once, and a read beyond nothing at all.

put    an item of one tensor goes into the ring under a new key (older items are evicted)   limit: one memcpy of it
read   handle -> tensor view in a reader                                                    limit: one memcpy of it,
which a
                                                                                            copying reader pays
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np
import torch

from benchmark import Row, median_pair_us, report, row
from mmcached.shm import ObjectStoreReader, ObjectStoreWriter, RingReader, RingWriter

MIB = 1 << 20
SIZES = (4096, 65_536, MIB, 4 * MIB, 16 * MIB)
RING_BYTES = 128 * MIB


def measure() -> Sequence[Row]:
    rows = []
    with RingWriter.create(data_bytes=RING_BYTES, max_object_bytes=32 * MIB) as ring, ObjectStoreWriter(ring) as store:
        reader = RingReader.open(ring.announcement)
        objects = ObjectStoreReader(reader)
        copies = torch.from_numpy(np.empty(RING_BYTES, np.uint8)).fill_(1)
        for nbytes in SIZES:
            rows += measure_size(nbytes, store, objects, copies)
        reader.close()
    return rows


def measure_size(nbytes: int, store: ObjectStoreWriter, objects: ObjectStoreReader, copies: torch.Tensor) -> list[Row]:
    item = {"pixel_values": torch.randint(0, 255, (nbytes,), dtype=torch.uint8)}
    keys = count()
    places = count()

    def put() -> None:
        store.put(f"{nbytes}:{next(keys)}", item)

    def copy() -> None:
        # Into ever new places of a region as large as the ring: the same cache misses as the ring's.
        start = next(places) * nbytes % (len(copies) - nbytes)
        copies[start : start + nbytes].copy_(item["pixel_values"])

    for _ in range(RING_BYTES // nbytes + 1):
        put()  # one lap first, so that no page is touched for the first time
    repeats = max(20, min(400, 256 * MIB // nbytes))
    put_us, copy_us = median_pair_us(put, copy, repeats=repeats)
    handle = store.put(f"{nbytes}:last", item)
    target = torch.empty(nbytes, dtype=torch.uint8)
    view_us, clone_us = median_pair_us(
        lambda: objects.get(handle), lambda: target.copy_(item["pixel_values"]), repeats=repeats
    )
    size = f"{nbytes:,} B"
    return [
        row("put", size, put_us, "us", peer="memcpy", peer_value=copy_us),
        row("read", size, view_us, "us", peer="memcpy", peer_value=clone_us),
    ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    report("ring against memcpy", measure)
