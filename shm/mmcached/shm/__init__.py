"""Shared-memory ring: one writer, many readers, tensors read in place, no locks on any data path.

writer (frontend)  RingWriter: claims, fills, commits           ObjectStoreWriter: records under keys
client, engine or  ReaderEntry: takes and returns leases        — the only writer of its entry
  worker           RingReader: read-only mapping, views         ObjectStoreReader: records from handles

ring/       chunks, leases, and the writer's and readers' interfaces
segment/    the two shared-memory objects of a ring: layout, creation, mapping, removal
store/      records encoded as bytes, stored under keys
stats/      the stats page, on which every role writes its figures
files/      locks that the kernel drops when their holder dies; safe opening of files
crash_points.py   named instants at which a test kills this process

Names are imported on first use, so that a reader does not import the writer's modules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmcached.shm.ring.chunks import RingClaim
    from mmcached.shm.ring.reader import RingReader
    from mmcached.shm.ring.reader_entry import ReaderEntry
    from mmcached.shm.ring.reader_watch import ReaderStopped, ReaderVoided
    from mmcached.shm.ring.ring import RingWriter, adopt_ring
    from mmcached.shm.segment.segment import HostCalls
    from mmcached.shm.segment.sweep import sweep
    from mmcached.shm.segment.words import WORD_STORE_NAME
    from mmcached.shm.store.codec import EncodedRecord, decode, decode_record_frames, encode
    from mmcached.shm.store.object_reader import ObjectStoreReader
    from mmcached.shm.store.object_store import ObjectStoreWriter

__all__ = [
    "WORD_STORE_NAME",
    "EncodedRecord",
    "HostCalls",
    "ObjectStoreReader",
    "ObjectStoreWriter",
    "ReaderEntry",
    "ReaderStopped",
    "ReaderVoided",
    "RingClaim",
    "RingReader",
    "RingWriter",
    "adopt_ring",
    "decode",
    "decode_record_frames",
    "encode",
    "sweep",
]

_MODULES = {
    "WORD_STORE_NAME": "segment.words",
    "RingClaim": "ring.chunks",
    "EncodedRecord": "store.codec",
    "HostCalls": "segment.segment",
    "ObjectStoreReader": "store.object_reader",
    "ObjectStoreWriter": "store.object_store",
    "ReaderEntry": "ring.reader_entry",
    "ReaderStopped": "ring.reader_watch",
    "ReaderVoided": "ring.reader_watch",
    "RingReader": "ring.reader",
    "RingWriter": "ring.ring",
    "adopt_ring": "ring.ring",
    "decode": "store.codec",
    "decode_record_frames": "store.codec",
    "encode": "store.codec",
    "sweep": "segment.sweep",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"mmcached.shm.{_MODULES[name]}"), name)
