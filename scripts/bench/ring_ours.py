"""The ring as a transport, and what it is held against that needs no peer: the record inline, and the hand-off alone.

ring        one entry per reader process, a handle and a lease in each descriptor, views in the readers. In two hops the
            first reader is the engine: it owns the entry and forwards; the second is its worker, reads under the same
            lease and tells the engine when nothing of it reads any more
inline      the record's frames go to every reader through ZeroMQ, as an item travels that does not fit the ring
hand-off    the message says nothing but which tensor, and the reader holds them all already: nothing that tells readers
            by a message can be faster
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec
import torch
import zmq

from mmcached.shm import ObjectStoreReader, ObjectStoreWriter, ReaderEntry, RingReader, RingWriter, decode_record_frames
from mmcached.shm import encode as encode_record
from mmcached.wire.handle import Handle, LeaseId, RingAnnouncement
from scripts.bench.harness import tell_once
from scripts.bench.ring_processes import Link, Options, ReaderEnd, ReaderPool, Shape, WriterEnd

Descriptor = tuple[Handle, LeaseId]
encode = msgspec.msgpack.Encoder().encode
decode_descriptor = msgspec.msgpack.Decoder(Descriptor).decode
NUM_SLOTS = 4096
STAMP_BYTES = 15
DONE = b"done"
POPULATED_WITHIN_S = 10


class RingWriterEnd(WriterEnd):
    """A fresh ring and its attached entries.

    Args:
        copy: the readers take private copies.
        two_hops: only the first reader has an entry; the second reads under it.
    """

    name = "ours"

    def __init__(self, pool: ReaderPool, shape: Shape, *, copy: bool = False, two_hops: bool = False) -> None:
        self._ring = RingWriter.create(
            data_bytes=shape.ring_bytes, num_slots=NUM_SLOTS, max_readers=shape.num_readers, max_object_bytes=2**30
        )
        self._store = ObjectStoreWriter(self._ring)
        try:
            if not self._ring.wait_populated(POPULATED_WITHIN_S):
                tell_once(f"the ring's pages are not there after {POPULATED_WITHIN_S} s: the first lap pays for them")
            super().__init__(pool, 2 if two_hops else shape.num_readers)
            greetings = self._open_ends(copy=copy, two_hops=two_hops)
            for reader_id, incarnation in greetings.values():
                if not self._ring.attach(reader_id, incarnation):
                    raise RuntimeError(f"entry {reader_id} was not attached")
        except BaseException:
            self._store.close()
            raise
        self._readers = [(reader_id, index) for index, (reader_id, _) in greetings.items()]

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
            super().close()
        finally:
            self._store.close()

    def _open_ends(self, *, copy: bool, two_hops: bool) -> dict[int, tuple[int, int]]:
        """Open the readers' ends; return (entry, incarnation) of each that has an entry."""
        options: Options = {"ring": encode(self._ring.announcement), "copy": copy}
        if not two_hops:
            return self.open_readers(EntryReaderEnd, options)
        engine = self.pool.open(self.session, EngineEnd, {0: {**options, "worker": 1}})
        self.pool.open(self.session, WorkerEnd, {1: {**options, "engine": 0, "entry": engine[0]}})
        return engine

    def _send(self, handle: Handle) -> None:
        for reader_id, index in self._readers:
            lease = self._ring.grant(reader_id, handle)
            self.pool.links[index].send(self._header + encode((handle, lease)))


class EntryReaderEnd(ReaderEnd):
    """A reader with an entry of its own: it reads, and gives back when the view has died."""

    def __init__(self, options: Options, link: Link) -> None:
        announcement = msgspec.msgpack.decode(options["ring"], type=RingAnnouncement)
        self._copy: bool = options["copy"]
        self._entry = ReaderEntry.attach(announcement)
        self._objects = ObjectStoreReader(RingReader.open(announcement))
        self._released: deque[Handle] = deque()
        self.greeting = (self._entry.reader_id, self._entry.incarnation)

    def serve(self, message: bytes, link: Link) -> Iterator[torch.Tensor]:
        handle, lease = decode_descriptor(message[1:])
        if not self._entry.receive(handle, lease):
            raise RuntimeError("a descriptor of another incarnation, or one that came before")
        record = self._objects.get(handle, copy=self._copy, on_release=lambda: self._released.append(handle))
        yield record.pop("pixel_values")
        while self._released:
            self._entry.give_back(self._released.popleft())

    def close(self) -> None:
        self._objects.close()
        self._entry.close()


class EngineEnd(ReaderEnd):
    """The entry's owner in two hops: forwards descriptors as they came and gives back what the worker is done with."""

    def __init__(self, options: Options, link: Link) -> None:
        self._entry = ReaderEntry.attach(msgspec.msgpack.decode(options["ring"], type=RingAnnouncement))
        self._worker = link.connect(options["worker"])
        self.greeting = (self._entry.reader_id, self._entry.incarnation)
        self._held: dict[tuple[int, int], Handle] = {}

    def serve(self, message: bytes, link: Link) -> Iterator[torch.Tensor]:
        if message.startswith(DONE, 1):
            handle = self._held.pop(msgspec.msgpack.decode(message[1 + len(DONE) :], type=tuple[int, int]))
            self._entry.give_back(handle)
            return
        handle, lease = decode_descriptor(message[1:])
        if not self._entry.receive(handle, lease):
            raise RuntimeError("a descriptor of another incarnation, or one that came before")
        self._held[lease.incarnation, lease.seq] = handle
        self._worker.send(message)
        yield from ()

    def close(self) -> None:
        self._worker.close()
        self._entry.close()


class WorkerEnd(ReaderEnd):
    """Reads under its engine's entry and writes no word of it."""

    def __init__(self, options: Options, link: Link) -> None:
        announcement = msgspec.msgpack.decode(options["ring"], type=RingAnnouncement)
        self._engine = link.connect(options["engine"])
        reader = RingReader.open(announcement)
        reader_id, incarnation = options["entry"]
        reader.join_entry(reader_id, incarnation, 0)
        self._objects = ObjectStoreReader(reader)
        self._released: deque[LeaseId] = deque()

    def serve(self, message: bytes, link: Link) -> Iterator[torch.Tensor]:
        handle, lease = decode_descriptor(message[1:])
        record = self._objects.get(handle, on_release=lambda: self._released.append(lease))
        yield record.pop("pixel_values")
        while self._released:
            done = self._released.popleft()
            self._engine.send(message[:1] + DONE + encode((done.incarnation, done.seq)))

    def close(self) -> None:
        self._engine.close()
        self._objects.close()


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
