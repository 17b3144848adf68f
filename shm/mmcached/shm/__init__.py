"""Bytes that two processes share: one writer, many readers, tensors read in place, no lock in any path.

    writer (P0)      RingWriter: claim, fill, commit, grant        ObjectStoreWriter: records under keys
    engine           ReaderRow: one incarnation, gives back        — the only writer of its row
    worker           RingReader: read-only mapping, views          ObjectStoreReader: records out of handles

`layout` draws the two shared-memory objects and says what is valid; `sweep` removes what killed services have left.
"""

from mmcached.shm.codec import EncodedRecord, decode, decode_frames, encode
from mmcached.shm.object_store import ObjectStoreReader, ObjectStoreWriter
from mmcached.shm.reader import RingReader
from mmcached.shm.ring import Claim, RingWriter
from mmcached.shm.row import ReaderRow
from mmcached.shm.segment import Host
from mmcached.shm.sweep import sweep
from mmcached.shm.words import WORD_STORE_NAME
from mmcached.shm.writer_rows import RowStopped, RowVoided

__all__ = [
    "WORD_STORE_NAME",
    "Claim",
    "EncodedRecord",
    "Host",
    "ObjectStoreReader",
    "ObjectStoreWriter",
    "ReaderRow",
    "RingReader",
    "RingWriter",
    "RowStopped",
    "RowVoided",
    "decode",
    "decode_frames",
    "encode",
    "sweep",
]
