"""A frontend that has a store and nothing else: the real desk on a real ring, in a thread, as a test wants it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import zmq

from mmcached.frontend.store.store_desk import StoreDesk
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages.client import Flushed, Welcome
from mmcached.wire.messages.frontend import Cancel, ClientBye, ClientHello, Flush, FromClient
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.channels import RouterChannel

POLL_S = 0.002


class StoreService:
    """Enter to serve `path`, leave to stop. What is sent to it is in `received`, in order.

    Args:
        config: settings of the store.
    Attributes:
        hold: messages of these kinds wait until `release`, so that their answers come late.
    """

    def __init__(self, path: Path, **config: Any) -> None:
        self.directory = RunDir(path)
        self.received: list[FromClient] = []
        self.hold: tuple[type, ...] = ()
        self.errors: list[BaseException] = []
        self._config = ServiceConfig(**({"store_gb": 1 / 64, "store_max_object_mb": 8} | config))
        self._held: list[tuple[bytes, FromClient, list[Any]]] = []
        self._todo: list[tuple[Callable[[], object], threading.Event]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name="store service")

    def release(self) -> None:
        """Serve what was held, and hold nothing more."""
        self.hold = ()
        self.call(self._serve_held)

    def call(self, what: Callable[[], object]) -> None:
        """Run something in the service's thread, and wait for it: one thread owns desk and ring."""
        done = threading.Event()
        self._todo.append((what, done))
        assert done.wait(30), "the service does not run"

    @property
    def leases(self) -> int:
        """Leases that are out."""
        found: list[int] = []
        self.call(lambda: found.append(self.desk.stats().ring.leases))
        return found[0]

    def count(self, kind: type) -> int:
        return sum(isinstance(message, kind) for message in self.received)

    def __enter__(self) -> Self:
        self.directory.create()
        self.directory.remove_sockets()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._channel: RouterChannel[FromClient] = RouterChannel(
            self._context, self.directory.client_address, FromClient
        )
        self.desk = StoreDesk.from_config(self._config, send=self._channel.try_send, clock=time.monotonic)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(30)
        self.desk.close()
        self._channel.close()
        self._context.term()
        if error is None and self.errors:
            raise self.errors[0]

    def _guarded(self) -> None:
        try:
            while not self._stop.is_set():
                self._poll()
        except BaseException as error:  # raised in the test's own thread
            self.errors.append(error)

    def _poll(self) -> None:
        while self._todo:
            what, done = self._todo.pop(0)
            what()
            done.set()
        if self._channel.wait(POLL_S):
            while (raw := self._channel.receive_raw()) is not None:
                message, payload = self._channel.decode(raw[1])
                self.received.append(message)
                if isinstance(message, self.hold):
                    self._held.append((raw[0], message, payload))
                else:
                    self._serve(raw[0], message, payload)
        self.desk.check(time.monotonic())

    def _serve_held(self) -> None:
        held, self._held = self._held, []
        for peer, message, payload in held:
            self._serve(peer, message, payload)

    def _serve(self, peer: bytes, message: FromClient, payload: list[Any]) -> None:
        match message:
            case ClientHello():
                self.desk.greet(peer, message.client_id)
                store = (self.desk.announcement, self.desk.tier.epoch)
                self._channel.send(peer, Welcome("store", 258, 257, 64, 8192, *store))
            case ClientBye():
                self.desk.end_client(message.client_id)
            case Flush():
                self.desk.flush(is_new_epoch=message.new_epoch)
                self._channel.send(peer, Flushed(message.request_id))
            case Cancel():
                self.desk.cancel(message.client_id, message.request_id)
            case _:
                self.desk.handle(peer, message, payload)  # type: ignore[arg-type]
