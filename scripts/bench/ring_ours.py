"""The ring as a transport, and what it is held against that needs no peer: the record inline, and the hand-off alone.

ring        one entry per reader process, a handle in each message; readers take leases, and view. In two hops the first
            reader is the engine: it takes a lease and forwards; the second is its worker, which takes its own and tells
            the engine when it has read
inline      the record's frames go to every reader through ZeroMQ, as an item travels that does not fit the ring
hand-off    the message says nothing but which tensor, and the reader holds them all already: nothing that tells readers
            by a message can be faster
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import torch
import zmq

from mmcached.client.store.lease_returns import LeaseReturns
from mmcached.shm import ObjectStoreReader, ObjectStoreWriter, ReaderEntry, RingReader, RingWriter, decode_record_frames
from mmcached.shm import encode as encode_record
from mmcached.wire.handle import Handle, RingAnnouncement
from scripts.bench.harness import tell_once
from scripts.bench.ring_processes import Link, Options, ReaderEnd, ReaderPool, Shape, WriterEnd

encode = msgspec.msgpack.Encoder().encode
decode_handle = msgspec.msgpack.Decoder(Handle).decode
NUM_SLOTS = 4096
STAMP_BYTES = 15
DONE = b"done"
POPULATED_WITHIN_S = 10


class RingWriterEnd(WriterEnd):
    """A fresh ring and its attached entries.

    Args:
        copy: the readers take private copies.
        two_hops: the first reader forwards to the second.
    """

    name = "ours"

    def __init__(self, pool: ReaderPool, shape: Shape, *, copy: bool = False, two_hops: bool = False) -> None:
        self._ring = RingWriter.create(
            data_bytes=shape.ring_bytes,
            num_slots=NUM_SLOTS,
            max_readers=max(2, shape.num_readers),
            max_object_bytes=2**30,
        )
        self._store = ObjectStoreWriter(self._ring)
        try:
            if not self._ring.wait_populated(POPULATED_WITHIN_S):
                tell_once(f"the ring's pages are not there after {POPULATED_WITHIN_S} s: the first lap pays for them")
            super().__init__(pool, 2 if two_hops else shape.num_readers)
            greetings = self._open_ends(copy=copy, two_hops=two_hops)
            for reader_id, incarnation in greetings.values():
                if not self._ring.readers.attach(reader_id, incarnation):
                    raise RuntimeError(f"entry {reader_id} was not attached")
        except BaseException:
            self._store.close()
            raise
        self._readers = list(greetings)

    def put(self, key: int, item: torch.Tensor) -> None:
        self._send(self._store.put(str(key), {"pixel_values": item}))

    def hit(self, key: int) -> None:
        handle = self._store.find(str(key))
        if handle is None:
            raise RuntimeError(f"item {key} was evicted")
        self._send(handle)

    def holds(self, key: int) -> bool:
        return self._store.find(str(key)) is not None

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._store.close()

    def _open_ends(self, *, copy: bool, two_hops: bool) -> dict[int, tuple[int, int]]:
        """Open the readers' ends; return (entry, incarnation) of each that has an entry."""
        options: Options = {"ring": encode(self._ring.announcement), "copy": copy}
        if not two_hops:
            return self.open_readers(EntryReaderEnd, options)
        engine = self.pool.open(self.session, EngineEnd, {0: {**options, "worker": 1}})
        worker = self.pool.open(self.session, WorkerEnd, {1: {**options, "engine": 0}})
        if not self._ring.readers.attach(*worker[1]):
            raise RuntimeError("the worker's entry was not attached")
        return engine

    def _send(self, handle: Handle) -> None:
        for index in self._readers:
            self.pool.links[index].send(self._header + encode(handle))


class EntryReaderEnd(ReaderEnd):
    """A reader with an entry of its own: it takes a lease, reads, and gives back when the view has died."""

    def __init__(self, options: Options, link: Link) -> None:
        announcement = msgspec.msgpack.decode(options["ring"], type=RingAnnouncement)
        self._copy: bool = options["copy"]
        self._entry = ReaderEntry.attach(announcement)
        self._reader = RingReader.open(announcement)
        self._objects = ObjectStoreReader(self._reader)
        self._returns = LeaseReturns(self._entry)
        self._reader.when_unmapped(self._returns.close_reader)
        self.greeting = (self._entry.reader_id, self._entry.incarnation)

    def serve(self, message: bytes, link: Link) -> Iterator[torch.Tensor]:
        yield self.read(decode_handle(message[1:])).pop("pixel_values")

    def read(self, handle: Handle) -> Any:
        holder = self._reader.holder(handle)
        if not all(self._entry.take_leases([self._returns.bind(holder, handle)], self._reader.look)):
            raise RuntimeError("the lease was not taken")
        return self._objects.decode_held(handle, holder, tensors="torch", copy=self._copy)

    def close(self) -> None:
        self._objects.close()


class EngineEnd(EntryReaderEnd):
    """The first of two hops: holds a record for as long as the worker reads it."""

    def __init__(self, options: Options, link: Link) -> None:
        super().__init__(options, link)
        self._worker = link.connect(options["worker"])
        self._held: dict[Handle, Any] = {}

    def serve(self, message: bytes, link: Link) -> Iterator[torch.Tensor]:
        if message.startswith(DONE, 1):
            del self._held[decode_handle(message[1 + len(DONE) :])]
            return
        handle = decode_handle(message[1:])
        self._held[handle] = self.read(handle)
        self._worker.send(message)
        yield from ()

    def close(self) -> None:
        self._held.clear()
        self._worker.close()
        super().close()


class WorkerEnd(EntryReaderEnd):
    """The second: says when it has read."""

    def __init__(self, options: Options, link: Link) -> None:
        super().__init__(options, link)
        self._engine = link.connect(options["engine"])

    def serve(self, message: bytes, link: Link) -> Iterator[torch.Tensor]:
        yield from super().serve(message, link)
        self._engine.send(message[:1] + DONE + message[1:])

    def close(self) -> None:
        self._engine.close()
        super().close()


class InlineWriterEnd(WriterEnd):
    """Sends each record whole."""

    name = "inline"

    def __init__(self, pool: ReaderPool, shape: Shape) -> None:
        super().__init__(pool, shape.num_readers)
        self.open_readers(InlineReaderEnd, {})

    def put(self, key: int, item: torch.Tensor) -> None:
        frames = [self._header, *encode_record({"pixel_values": item}).frames()]
        for link in self.pool.links[: self.num_told]:
            link.send_multipart(frames, copy=False)


class InlineReaderEnd(ReaderEnd):
    """Makes the record of its frames; its tensors lie in them."""

    def serve(self, message: bytes, link: Link) -> Iterator[torch.Tensor]:
        frames: list[zmq.Frame] = link.inbox.recv_multipart(copy=False)
        yield decode_record_frames([frame.buffer for frame in frames], tensors="torch").pop("pixel_values")


class HandOffWriterEnd(WriterEnd):
    """Sends stamps."""

    name = "hand-off"

    def __init__(self, pool: ReaderPool, shape: Shape) -> None:
        super().__init__(pool, shape.num_readers)
        self.open_readers(HandOffReaderEnd, {})

    def put(self, key: int, item: torch.Tensor) -> None:
        self.hit(int(item[0].item()))

    def hit(self, key: int) -> None:
        self.send(key.to_bytes(STAMP_BYTES))

    def holds(self, key: int) -> bool:
        return True


class HandOffReaderEnd(ReaderEnd):
    """Writes the stamp into a tensor of its own."""

    def __init__(self, options: Options, link: Link) -> None:
        self._tensor = torch.zeros(2)

    def serve(self, message: bytes, link: Link) -> Iterator[torch.Tensor]:
        self._tensor.fill_(int.from_bytes(message[1:]))
        yield self._tensor
