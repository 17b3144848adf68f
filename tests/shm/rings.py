"""Rings in this process, small and closed after use."""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import posix_ipc

from mmcached.shm import HostCalls, ReaderEntry, RingReader, RingWriter
from mmcached.shm.segment.layout import Layout
from mmcached.shm.segment.ring_notes import RingNote, write_note
from mmcached.shm.segment.segment import WriterSegment
from mmcached.wire.handle import Handle, RingAnnouncement


def make_ring(data_bytes: int = 1 << 16, **options: Any) -> RingWriter:
    settings: dict[str, Any] = {"num_slots": 64, "max_readers": 4, "max_object_bytes": data_bytes}
    return RingWriter.create(data_bytes=data_bytes, **(settings | options))


def put(ring: RingWriter, nbytes: int, value: int = 0) -> Handle:
    """Put a payload whose bytes all have one value."""
    claim = ring.claim(nbytes)
    claim.buffer[:] = value
    return ring.commit(claim)


@dataclass(slots=True)
class Taking:
    """A lease that a reader is to take."""

    handle: Handle
    is_counted: bool = False
    num_returned: int = 0


@contextlib.contextmanager
def attached(ring: RingWriter) -> Iterator[ReaderEntry]:
    """An entry of this process that the ring has accepted."""
    with ReaderEntry.attach(ring.announcement) as entry:
        assert ring.readers.attach(entry.reader_id, entry.incarnation)
        yield entry


def take(ring: RingWriter, entry: ReaderEntry, handle: Handle) -> bool:
    """Take a lease for an entry of this process; return whether it holds."""
    with reading(ring) as reader:
        return all(entry.take_leases([Taking(handle)], reader.look))


@contextlib.contextmanager
def reading(ring: RingWriter) -> Iterator[RingReader]:
    with RingReader.open(ring.announcement) as reader:
        yield reader


def leave_ring(home: Path, name: str = "store", *, is_kept: bool = False) -> RingAnnouncement:
    """Make a ring for a run directory, take note of it there, and let go of its lock as a kill does."""
    segment = WriterSegment.create(Layout(1 << 16, 64, 4, 128), epoch=time.time_ns(), host=HostCalls(), home=str(home))
    segment.close(keeps_names=True)
    write_note(home, name, RingNote(segment.announcement, is_kept))
    return segment.announcement


@contextlib.contextmanager
def overwritten(name: str) -> Iterator[memoryview]:
    """The words of an object, as anybody of this user can map them by name."""
    fd = posix_ipc.SharedMemory(name).fd
    with mmap.mmap(fd, 0) as mapping, memoryview(mapping) as whole, whole.cast("Q") as words:
        os.close(fd)
        yield words
