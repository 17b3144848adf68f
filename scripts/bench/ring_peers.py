"""The ring's peers as transports; each raises `Unavailable` where it is not installed.

vLLM       its shared-memory object storage, used as its sender and receiver caches use it: put, sign, send (address,
           id, signature, key); the reader verifies, copies out, counts itself under the shared lock. The lock is a
           POSIX semaphore, as `multiprocessing.Lock` is one: a spawned process cannot inherit the latter
iceoryx2   publish and subscribe over preallocated slices; no store, so what it calls a hit would be a second put. Its
           readers wait on its own events and not on ZeroMQ, so they are told beforehand how many tensors come
Redis      on a unix socket: SET by the writer, the key over ZeroMQ, GET by every reader
pickle     `multiprocessing.shared_memory`: places in turn, the whole record as one pickle, loaded by every reader.
           Nobody guards the places; it shows what a few lines get
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import itertools
import os
import pickle  # noqa: TID251 — it is what is measured
from collections.abc import Iterator
from multiprocessing import resource_tracker, shared_memory  # noqa: TID251 — it is what is measured
from typing import Any

import msgspec
import numpy as np
import posix_ipc
import torch

from mmcached.cli.bench.redis import has_redis_server, redis_server
from scripts.bench import peers
from scripts.bench.harness import Unavailable
from scripts.bench.ring_processes import DEADLINE_MS, Link, Options, ReaderEnd, ReaderPool, Shape, WriterEnd

VLLM_HEADER_BYTES = 64 * 1024
PICKLE_HEADER_BYTES = 4096
REDIS_KEYS = 4
"""Names are used in turn, so that the server's memory stays bounded."""


class StoreWriterEnd(WriterEnd):
    """A fresh store. Args as `RingWriterEnd`: in two hops the first reader forwards, the second reads."""

    name = "vLLM"

    def __init__(self, pool: ReaderPool, shape: Shape, *, two_hops: bool = False) -> None:
        module, self._inputs = peers.load_vllm()
        super().__init__(pool, 2 if two_hops else shape.num_readers)
        self.num_told = 1 if two_hops else shape.num_readers
        buffer = module.SingleWriterShmRingBuffer(data_buffer_size=shape.ring_bytes, create=True)
        max_object_bytes = shape.item_bytes + VLLM_HEADER_BYTES
        self._store = module.SingleWriterShmObjectStorage(max_object_bytes, shape.num_readers, buffer)
        self._field = self._inputs.MultiModalBatchedField()
        lock_name = f"/ring-peers-{os.getpid()}-{self.session}"
        posix_ipc.Semaphore(lock_name, posix_ipc.O_CREX, mode=0o600, initial_value=1).close()
        try:
            options: Options = {
                "buffer": buffer.handle(),
                "max_object_bytes": max_object_bytes,
                "num_readers": shape.num_readers,
                "lock": lock_name,
            }
            if two_hops:
                pool.open(self.session, ForwarderEnd, {0: {"forward_to": 1}})
                pool.open(self.session, StoreReaderEnd, {1: options})
            else:
                self.open_readers(StoreReaderEnd, options)
        finally:
            posix_ipc.unlink_semaphore(lock_name)

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
            super().close()
        finally:
            self._store.close()

    def _send(self, key: str, address: int, monotonic_id: int) -> None:
        signature = self._store.get_signature(key)
        self.send(msgspec.msgpack.encode((address, monotonic_id, signature, key)))


class StoreReaderEnd(ReaderEnd):
    """A reader of the store."""

    def __init__(self, options: Options, link: Link) -> None:
        module, _ = peers.load_vllm()
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


class ForwarderEnd(ReaderEnd):
    """The process between writer and reader: it passes messages on as they came."""

    def __init__(self, options: Options, link: Link) -> None:
        self._next = link.connect(options["forward_to"])

    def serve(self, message: bytes, link: Link) -> Iterator[torch.Tensor]:
        self._next.send(message)
        yield from ()

    def close(self) -> None:
        self._next.close()


class PublisherEnd(WriterEnd):
    """One publisher and one notifier for all readers."""

    name = "iceoryx2"

    def __init__(self, pool: ReaderPool, shape: Shape) -> None:
        module = _load_iceoryx()
        super().__init__(pool, shape.num_readers)
        name = f"ring-peers/{os.getpid()}/{self.session}"
        self._services: Any = _services(module, name, shape.num_readers)
        builder = self._services[1].publisher_builder().initial_max_slice_len(shape.item_bytes)
        self._publisher: Any = builder.create()
        self._notifier: Any = self._services[2].notifier_builder().create()
        self.open_readers(SubscriberEnd, {"name": name, "num_readers": shape.num_readers})

    def begin(self, num_puts: int) -> None:
        self.send(num_puts.to_bytes(4))

    def put(self, key: int, item: torch.Tensor) -> None:
        sample = self._publisher.loan_slice_uninit(item.nbytes)
        ctypes.memmove(sample.payload_ptr, item.data_ptr(), item.nbytes)
        sample.assume_init().send()
        self._notifier.notify()

    def close(self) -> None:
        super().close()
        del self._publisher, self._notifier, self._services


class SubscriberEnd(ReaderEnd):
    """One subscriber and one listener."""

    def __init__(self, options: Options, link: Link) -> None:
        module = _load_iceoryx()
        self._services: Any = _services(module, options["name"], options["num_readers"])
        self._subscriber: Any = self._services[1].subscriber_builder().create()
        self._listener: Any = self._services[2].listener_builder().create()
        self._deadline = module.Duration.from_millis(DEADLINE_MS)

    def serve(self, message: bytes, link: Link) -> Iterator[torch.Tensor]:
        for _ in range(int.from_bytes(message[1:])):
            while (sample := self._subscriber.receive()) is None:
                if self._listener.timed_wait(self._deadline) is None:
                    raise TimeoutError("no sample came")
            payload = sample.payload()
            array = np.ctypeslib.as_array((ctypes.c_uint8 * payload.len()).from_address(payload.as_ptr()))
            yield torch.from_numpy(array).view(torch.float32)
            sample.delete()

    def close(self) -> None:
        del self._subscriber, self._listener, self._services


def _load_iceoryx() -> Any:
    if importlib.util.find_spec("iceoryx2") is None:
        raise Unavailable("iceoryx2 is not installed")
    module = importlib.import_module("iceoryx2")
    module.set_log_level(module.LogLevel.Fatal)
    return module


def _services(module: Any, name: str, num_readers: int) -> tuple[Any, Any, Any]:
    """Return node, data service and event service."""
    node = module.NodeBuilder.new().create(module.ServiceType.Ipc)
    data = node.service_builder(module.ServiceName.new(f"{name}/data")).publish_subscribe(module.Slice[ctypes.c_uint8])
    events = node.service_builder(module.ServiceName.new(f"{name}/events")).event()
    opened = data.max_subscribers(num_readers).subscriber_max_buffer_size(1).subscriber_max_borrowed_samples(1)
    return node, opened.open_or_create(), events.open_or_create()


class RedisWriterEnd(WriterEnd):
    """A server of its own, without persistence."""

    name = "Redis"

    def __init__(self, pool: ReaderPool, shape: Shape) -> None:
        if not (has_redis_server() and peers.has_redis_client()):
            raise Unavailable("redis-server or the Python package redis is not installed")
        super().__init__(pool, shape.num_readers)
        path = f"{pool.directory}/redis{self.session}"
        with contextlib.ExitStack() as undo:
            undo.enter_context(redis_server(path))
            self._client = undo.enter_context(peers.connect_redis(path))
            self.open_readers(RedisReaderEnd, {"path": path})
            self._undo = undo.pop_all()

    def put(self, key: int, item: torch.Tensor) -> None:
        self._client.set(str(key % REDIS_KEYS), item.numpy().data.cast("B"))
        self.hit(key)

    def hit(self, key: int) -> None:
        self.send(str(key % REDIS_KEYS).encode())

    def holds(self, key: int) -> bool:
        return True

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._undo.close()


class RedisReaderEnd(ReaderEnd):
    """A client; what it gets is a copy of its own."""

    def __init__(self, options: Options, link: Link) -> None:
        self._client = peers.connect_redis(options["path"])

    def serve(self, message: bytes, link: Link) -> Iterator[torch.Tensor]:
        yield torch.frombuffer(bytearray(self._client.get(message[1:])), dtype=torch.float32)

    def close(self) -> None:
        self._client.close()


class PickleWriterEnd(WriterEnd):
    """One segment, as many places as fit."""

    name = "shared_memory + pickle"

    def __init__(self, pool: ReaderPool, shape: Shape) -> None:
        super().__init__(pool, shape.num_readers)
        self._memory = shared_memory.SharedMemory(create=True, size=shape.ring_bytes)
        self._buffer = memoryview(self._memory.buf or b"")
        place_bytes = shape.item_bytes + PICKLE_HEADER_BYTES
        self._places = itertools.cycle(range(0, shape.ring_bytes - place_bytes + 1, place_bytes))
        self.open_readers(PickleReaderEnd, {"name": self._memory.name})

    def put(self, key: int, item: torch.Tensor) -> None:
        packed = pickle.dumps({"pixel_values": item}, pickle.HIGHEST_PROTOCOL)
        place = next(self._places)
        self._buffer[place : place + len(packed)] = packed
        self.send(place.to_bytes(8) + len(packed).to_bytes(8))

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._buffer.release()
            self._memory.close()
            self._memory.unlink()


class PickleReaderEnd(ReaderEnd):
    """Loads what lies at a place."""

    def __init__(self, options: Options, link: Link) -> None:
        self._memory = shared_memory.SharedMemory(options["name"])
        # Attaching registers the segment as if it were this process's, whose tracker would unlink it at the end.
        resource_tracker.unregister(f"/{self._memory.name}", "shared_memory")
        self._buffer = memoryview(self._memory.buf or b"")

    def serve(self, message: bytes, link: Link) -> Iterator[torch.Tensor]:
        place, nbytes = int.from_bytes(message[1:9]), int.from_bytes(message[9:17])
        with self._buffer[place : place + nbytes] as packed:
            record = pickle.loads(packed)  # noqa: S301 — made by this measurement's writer
        yield record.pop("pixel_values")

    def close(self) -> None:
        self._buffer.release()
        self._memory.close()
