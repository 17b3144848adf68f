"""vLLM's shared-memory object storage, used as its sender and receiver caches use it.

put, sign, send (address, id, signature, key); the reader verifies, copies out, counts itself under the shared lock.
The lock is a POSIX semaphore, as `multiprocessing.Lock` is one: a spawned process cannot inherit the latter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec
import posix_ipc
import torch

from ring_peers import vllm_imports
from ring_peers.pool import ReaderPool
from ring_peers.transport import Link, Options, Shape

ROOM_FOR_HEADERS = 64 * 1024


class StoreWriterEnd:
    """A fresh store. Args as `RingWriterEnd`: in two hops the first reader forwards, the second reads."""

    name = "vLLM"

    def __init__(self, pool: ReaderPool, shape: Shape, *, two_hops: bool = False) -> None:
        module, self._inputs = vllm_imports.load()
        self._pool = pool
        self._num_processes = 2 if two_hops else shape.num_readers
        self._readers = range(1 if two_hops else shape.num_readers)
        buffer = module.SingleWriterShmRingBuffer(data_buffer_size=shape.ring_bytes, create=True)
        max_object_bytes = shape.item_bytes + ROOM_FOR_HEADERS
        self._store = module.SingleWriterShmObjectStorage(max_object_bytes, shape.num_readers, buffer)
        self._field = self._inputs.MultiModalBatchedField()
        self._session = pool.new_session()
        self._header = bytes([self._session])
        lock_name = f"/ring-peers-{os.getpid()}-{self._session}"
        posix_ipc.Semaphore(lock_name, posix_ipc.O_CREX, mode=0o600, initial_value=1).close()
        try:
            options: Options = {
                "buffer": buffer.handle(),
                "max_object_bytes": max_object_bytes,
                "num_readers": shape.num_readers,
                "lock": lock_name,
            }
            calls = dict.fromkeys(range(self._num_processes), options)
            if two_hops:
                calls[0] = {"forward_to": 1}
            pool.open(self._session, "vllm_store", calls)
        finally:
            posix_ipc.unlink_semaphore(lock_name)

    def begin(self, num_puts: int) -> None:
        pass

    def put(self, key: int, item: torch.Tensor) -> None:
        element = self._inputs.MultiModalFieldElem(data=item, field=self._field)
        name = str(key)
        self._send(name, *self._store.put(name, self._inputs.MultiModalKwargsItem({"pixel_values": element})))

    def hit(self, key: int) -> None:
        name = str(key)
        self._send(name, *self._store.get_cached(name))

    def holds(self, key: int) -> bool:
        return bool(self._store.is_cached(str(key)))

    def close(self) -> None:
        try:
            self._pool.close_session(self._session, self._num_processes)
        finally:
            self._store.close()

    def _send(self, key: str, address: int, monotonic_id: int) -> None:
        signature = self._store.get_signature(key)
        message = self._header + msgspec.msgpack.encode((address, monotonic_id, signature, key))
        for index in self._readers:
            self._pool.links[index].send(message)


class StoreReaderEnd:
    """A reader of the store."""

    def __init__(self, options: Options) -> None:
        module, _ = vllm_imports.load()
        self._lock: Any = posix_ipc.Semaphore(options["lock"])
        size, name = options["buffer"]
        buffer = module.SingleWriterShmRingBuffer(size, name)
        self._store = module.SingleWriterShmObjectStorage(
            options["max_object_bytes"], options["num_readers"], buffer, reader_lock=self._lock
        )

    def serve(self, message: bytes, link: Link) -> Iterator[torch.Tensor]:
        address, monotonic_id, signature, key = msgspec.msgpack.decode(memoryview(message)[1:])
        yield self._store.get(address, monotonic_id, signature, key)["pixel_values"].data

    def close(self) -> None:
        self._store.close()
        self._lock.close()


class ForwarderEnd:
    """The process between writer and reader: it passes messages on as they came."""

    def __init__(self, options: Options, link: Link) -> None:
        self._next = link.connect(options["forward_to"])

    def serve(self, message: bytes, link: Link) -> Iterator[torch.Tensor]:
        self._next.send(message)
        yield from ()

    def close(self) -> None:
        self._next.close()


def open_reader(session: int, options: Options, link: Link) -> StoreReaderEnd | ForwarderEnd:
    """Open the reader's end that the options ask for."""
    return ForwarderEnd(options, link) if "forward_to" in options else StoreReaderEnd(options)
