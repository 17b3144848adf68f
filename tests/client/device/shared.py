"""A ring with records, and this process as a reader of it."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from mmcached.client.store.lease_returns import LeaseReturns
from mmcached.shm import ObjectStoreReader, ObjectStoreWriter, ReaderEntry, RingReader, RingWriter
from mmcached.shm.segment.pages import Pages

RING_BYTES = 1 << 18


class Shared:
    """A ring with records, and this process as a reader that takes leases of them."""

    def __init__(self, ring: RingWriter, stack: contextlib.ExitStack) -> None:
        self.ring = ring
        self.store = ObjectStoreWriter(ring)
        self._entry = ReaderEntry.attach(ring.announcement)
        assert ring.readers.attach(self._entry.reader_id, self._entry.incarnation)
        self._returns = LeaseReturns(self._entry)
        mapping = RingReader.open(ring.announcement)
        mapping.when_unmapped(self._returns.close_reader)
        self._objects = ObjectStoreReader(mapping)
        stack.callback(self._objects.close)

    @property
    def pages(self) -> Pages:
        """What is mapped of the ring."""
        return self._objects.reader.pages

    def view(self, key: str, record: dict[str, Any]) -> dict[str, Any]:
        """Put a record, and return it in place, under a lease that ends with its last view."""
        handle = self.store.put(key, record)
        holder = self._objects.reader.holder(handle)
        lease = self._returns.bind(holder, handle)
        assert self._entry.take_leases([lease], self._objects.reader.look) == [True]
        found = self._objects.decode_held(handle, holder, tensors="torch", copy=False)
        assert isinstance(found, dict)
        return found

    def num_leases(self) -> int:
        return self.ring.stats().leases


def output(seed: int, rows: int = 300) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    wide = torch.randn(rows, 20, generator=generator)
    return {"embeds": wide.bfloat16(), "deep": wide[:7].double(), "count": torch.tensor(rows), "grid": wide[:3] > 0}
