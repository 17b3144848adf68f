"""The ring: one row per reader process, a handle and a lease in each descriptor, views in the readers.

In two hops the first reader is the engine: it owns the row and forwards; the second is its worker, reads under the
same lease and tells the engine when nothing of it reads any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec
import torch

from mmcached.shm import ObjectStoreReader, ObjectStoreWriter, ReaderRow, RingReader, RingWriter
from mmcached.wire.handle import Handle, LeaseId, RingAnnouncement
from ring_peers.pool import ReaderPool
from ring_peers.rounds import tell_once
from ring_peers.transport import Link, Options, Shape

Descriptor = tuple[Handle, LeaseId]
encode = msgspec.msgpack.Encoder().encode
decode_descriptor = msgspec.msgpack.Decoder(Descriptor).decode
NUM_SLOTS = 4096
DONE = b"done"
POPULATED_WITHIN_S = 10


class RingWriterEnd:
    """A fresh ring and its attached rows.

    Args:
        copy: the readers take private copies.
        two_hops: only the first reader has a row; the second reads under it.
    """

    name = "ours"

    def __init__(self, pool: ReaderPool, shape: Shape, *, copy: bool = False, two_hops: bool = False) -> None:
        self._pool = pool
        self._num_processes = 2 if two_hops else shape.num_readers
        self._ring = RingWriter.create(
            data_bytes=shape.ring_bytes, num_slots=NUM_SLOTS, max_rows=shape.num_readers, max_object_bytes=2**30
        )
        self._store = ObjectStoreWriter(self._ring)
        try:
            if not self._ring.wait_populated(POPULATED_WITHIN_S):
                tell_once(f"the ring's pages are not there after {POPULATED_WITHIN_S} s: the first lap pays for them")
            self._session = pool.new_session()
            self._header = bytes([self._session])
            greetings = self._open_readers(shape.num_readers, copy=copy, two_hops=two_hops)
            for row, nonce in greetings.values():
                if not self._ring.attach(row, nonce):
                    raise RuntimeError(f"row {row} was not attached")
        except BaseException:
            self._store.close()
            raise
        self._rows = [(row, index) for index, (row, _) in greetings.items()]

    def begin(self, num_puts: int) -> None:
        pass

    def put(self, key: int, item: torch.Tensor) -> None:
        self._send(self._store.put(str(key), {"pixel_values": item}))

    def hit(self, key: int) -> None:
        handle = self._store.find(str(key))
        if handle is None:
            raise RuntimeError(f"item {key} was evicted")
        self._send(handle)

    def holds(self, key: int) -> bool:
        return self._store.is_cached(str(key))

    def close(self) -> None:
        try:
            self._pool.close_session(self._session, self._num_processes)
        finally:
            self._store.close()

    def _open_readers(self, num_readers: int, *, copy: bool, two_hops: bool) -> dict[int, tuple[int, int]]:
        """Open the readers' ends; return (row, nonce) of each that has a row."""
        options: Options = {"ring": encode(self._ring.announcement), "copy": copy}
        if not two_hops:
            return self._pool.open(self._session, "ours", dict.fromkeys(range(num_readers), options))
        engine = self._pool.open(self._session, "ours", {0: {**options, "worker": 1}})
        self._pool.open(self._session, "ours", {1: {**options, "engine": 0, "row": engine[0]}})
        return engine

    def _send(self, handle: Handle) -> None:
        for row, index in self._rows:
            lease = self._ring.grant(row, handle)
            self._pool.links[index].send(self._header + encode((handle, lease)))


class RowReaderEnd:
    """A reader with a row of its own: it reads, and gives back when the view has died."""

    def __init__(self, options: Options) -> None:
        announcement = msgspec.msgpack.decode(options["ring"], type=RingAnnouncement)
        self._copy: bool = options["copy"]
        self._row = ReaderRow.attach(announcement)
        self._objects = ObjectStoreReader(RingReader.open(announcement))
        self._released: deque[Handle] = deque()
        self.greeting = (self._row.row, self._row.nonce)

    def serve(self, message: bytes, link: Link) -> Iterator[torch.Tensor]:
        handle, lease = decode_descriptor(message[1:])
        if not self._row.receive(handle, lease):
            raise RuntimeError("a descriptor of another incarnation, or one that came before")
        record = self._objects.get(handle, copy=self._copy, on_release=lambda: self._released.append(handle))
        yield record.pop("pixel_values")
        while self._released:
            self._row.give_back(self._released.popleft())

    def close(self) -> None:
        self._objects.close()
        self._row.close()


class EngineEnd:
    """The row's owner in two hops: forwards descriptors as they came and gives back what the worker is done with."""

    def __init__(self, options: Options, link: Link) -> None:
        self._row = ReaderRow.attach(msgspec.msgpack.decode(options["ring"], type=RingAnnouncement))
        self._worker = link.connect(options["worker"])
        self.greeting = (self._row.row, self._row.nonce)
        self._held: dict[tuple[int, int], Handle] = {}

    def serve(self, message: bytes, link: Link) -> Iterator[torch.Tensor]:
        if message.startswith(DONE, 1):
            handle = self._held.pop(msgspec.msgpack.decode(message[1 + len(DONE) :], type=tuple[int, int]))
            self._row.give_back(handle)
            return
        handle, lease = decode_descriptor(message[1:])
        if not self._row.receive(handle, lease):
            raise RuntimeError("a descriptor of another incarnation, or one that came before")
        self._held[lease.nonce, lease.seq] = handle
        self._worker.send(message)
        yield from ()

    def close(self) -> None:
        self._worker.close()
        self._row.close()


class WorkerEnd:
    """Reads under its engine's row and writes no word of it."""

    def __init__(self, options: Options, link: Link) -> None:
        announcement = msgspec.msgpack.decode(options["ring"], type=RingAnnouncement)
        self._engine = link.connect(options["engine"])
        reader = RingReader.open(announcement)
        row, nonce = options["row"]
        reader.join_row(row, nonce, 0)
        self._objects = ObjectStoreReader(reader)
        self._released: deque[LeaseId] = deque()

    def serve(self, message: bytes, link: Link) -> Iterator[torch.Tensor]:
        handle, lease = decode_descriptor(message[1:])
        record = self._objects.get(handle, on_release=lambda: self._released.append(lease))
        yield record.pop("pixel_values")
        while self._released:
            done = self._released.popleft()
            self._engine.send(message[:1] + DONE + encode((done.nonce, done.seq)))

    def close(self) -> None:
        self._engine.close()
        self._objects.close()


def open_reader(session: int, options: Options, link: Link) -> RowReaderEnd | EngineEnd | WorkerEnd:
    """Open the reader's end that the options ask for."""
    if "worker" in options:
        return EngineEnd(options, link)
    if "engine" in options:
        return WorkerEnd(options, link)
    return RowReaderEnd(options)
