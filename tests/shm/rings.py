"""Rings in this process, small and closed after use."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from typing import Any

import posix_ipc

from mmcached.shm import ReaderEntry, RingReader, RingWriter
from mmcached.wire.handle import Handle


def make_ring(data_bytes: int = 1 << 16, **options: Any) -> RingWriter:
    settings: dict[str, Any] = {"num_slots": 64, "max_readers": 4, "max_object_bytes": data_bytes}
    return RingWriter.create(data_bytes=data_bytes, **(settings | options))


def put(ring: RingWriter, nbytes: int, value: int = 0) -> Handle:
    """Put a payload whose bytes all have one value."""
    claim = ring.claim(nbytes)
    claim.buffer[:] = value
    return ring.commit(claim)


@contextlib.contextmanager
def attached(ring: RingWriter) -> Iterator[ReaderEntry]:
    """An entry of this process that the ring has accepted."""
    with ReaderEntry.attach(ring.announcement) as entry:
        assert ring.attach(entry.reader_id, entry.incarnation)
        yield entry


@contextlib.contextmanager
def reading(ring: RingWriter) -> Iterator[RingReader]:
    with RingReader.open(ring.announcement) as reader:
        yield reader


@contextlib.contextmanager
def overwritten(name: str) -> Iterator[memoryview]:
    """The words of an object, as anybody of this user can map them by name."""
    fd = posix_ipc.SharedMemory(name).fd
    with mmap.mmap(fd, 0) as mapping, memoryview(mapping) as whole, whole.cast("Q") as words:
        os.close(fd)
        yield words
