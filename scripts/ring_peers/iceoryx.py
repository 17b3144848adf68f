"""iceoryx2: publish and subscribe over preallocated slices; no store, so what it calls a hit would be a second put.

Its readers wait on its own events and not on ZeroMQ. So they are told beforehand how many tensors come, and then block
in iceoryx2 alone.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ring_peers.pool import ReaderPool
from ring_peers.transport import DEADLINE_MS, Link, Options, Shape, Unavailable


def _load() -> Any:
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


class PublisherEnd:
    """One publisher and one notifier for all readers."""

    name = "iceoryx2"

    def __init__(self, pool: ReaderPool, shape: Shape) -> None:
        module = _load()
        self._pool = pool
        self._num_readers = shape.num_readers
        self._session = pool.new_session()
        name = f"ring-peers/{os.getpid()}/{self._session}"
        services = _services(module, name, shape.num_readers)
        builder = services[1].publisher_builder().initial_max_slice_len(shape.item_bytes)
        self._publisher: Any = builder.create()
        self._notifier: Any = services[2].notifier_builder().create()
        self._services: Any = services
        options: Options = {"name": name, "num_readers": shape.num_readers}
        pool.open(self._session, "iceoryx", dict.fromkeys(range(shape.num_readers), options))

    def begin(self, num_puts: int) -> None:
        message = bytes([self._session]) + num_puts.to_bytes(4)
        for index in range(self._num_readers):
            self._pool.links[index].send(message)

    def put(self, key: int, item: torch.Tensor) -> None:
        sample = self._publisher.loan_slice_uninit(item.nbytes)
        ctypes.memmove(sample.payload_ptr, item.data_ptr(), item.nbytes)
        sample.assume_init().send()
        self._notifier.notify()

    def hit(self, key: int) -> None:
        raise NotImplementedError("iceoryx2 keeps nothing to hit")

    def holds(self, key: int) -> bool:
        return False

    def close(self) -> None:
        self._pool.close_session(self._session, self._num_readers)
        del self._publisher, self._notifier, self._services


class SubscriberEnd:
    """One subscriber and one listener."""

    def __init__(self, options: Options) -> None:
        module = _load()
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


def open_reader(session: int, options: Options, link: Link) -> SubscriberEnd:
    """Open the reader's end."""
    return SubscriberEnd(options)
