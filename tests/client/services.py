"""Frontends in a thread: one that says only what a test tells it to, and one with a real store and a model that echoes.

Both speak through the frontend's own socket.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from msgspec.structs import replace

from mmcached.frontend.connections.listening import listen_for_clients, message_limits
from mmcached.frontend.store.store_service import StoreService as Store
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import RemoteProtocolError
from mmcached.wire.messages.client import Encoded, Flushed, Generated, Probed, ToClient, Tokens, Welcome
from mmcached.wire.messages.frontend import (
    Cancel,
    ClientBye,
    ClientHello,
    Encode,
    Flush,
    FromClient,
    Generate,
    Probe,
)
from mmcached.wire.messages.parts import EncoderOutput, SavedRows, StreamedTokens, Tensor
from mmcached.wire.paths import RunDir
from mmcached.wire.process.turns import Guard, TurnShare
from mmcached.wire.sockets.sending import Piece
from mmcached.wire.vocabulary import Modality

POLL_S = 0.002
ALL = TurnShare(10_000, 60.0)

Reply = Callable[[FromClient], Iterable[ToClient]]
WELCOME = Welcome("fake", 258, 257, 64, 8192)

FINGERPRINTS: dict[Modality, str] = {"image": "p", "video": "v", "audio": "a"}


def slices_of(file: bytes) -> list[bytes]:
    """Return what is said to be the slices of a clip: 8 bytes each."""
    return [file[start : start + 8] for start in range(0, len(file), 8)]


def time_of(index: int) -> tuple[float, float]:
    """Return the seconds of a slice."""
    return index / 2, index / 2 + 0.5


def silent(message: FromClient) -> list[ToClient]:
    """Say nothing."""
    return []


def tokens(request_id: int, first: int, *token_ids: int) -> Tokens:
    return Tokens([StreamedTokens(request_id, first, list(token_ids))])


def hesitate(message: FromClient) -> list[ToClient]:
    """Say two tokens of a stream, and then nothing."""
    return [tokens(message.request_id, 0, 1, 2)] if isinstance(message, Generate) and message.stream_window else []


def send_half_of_the_next_message(monkeypatch: pytest.MonkeyPatch, error: type[BaseException]) -> None:
    """Have the next message of a client end in its middle with an exception."""

    def send_half(to: socket.socket, pieces: list[Piece]) -> list[Piece]:
        monkeypatch.undo()
        to.send(memoryview(pieces[0])[:1])
        raise error

    monkeypatch.setattr("mmcached.wire.sockets.dialer.send_now", send_half)


class ServiceThread:
    """Enter to serve `path`, leave to stop. What is sent to it is in `received`, in order.

    Attributes:
        peers: the connection of each client id that has said it, the newest.
    """

    def __init__(self, path: Path, **config: Any) -> None:
        self.directory = RunDir(path)
        self.config = ServiceConfig(**{"mm_processor_cache_gb": 0.0, **config})
        self.received: list[FromClient] = []
        self.peers: dict[str, bytes] = {}
        self._errors: list[BaseException] = []
        self._todo: list[tuple[Callable[[], object], threading.Event]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name="service")

    def call(self, what: Callable[[], object]) -> None:
        """Run something in the service's thread, and wait for it: one thread owns sockets and ring."""
        done = threading.Event()
        self._todo.append((what, done))
        assert done.wait(30), "the service does not run"

    def count(self, kind: type) -> int:
        return sum(isinstance(message, kind) for message in self.received)

    def refuse(self, peer: bytes, error: RemoteProtocolError) -> None:
        """Answer a message that could not be read; a client sends none."""
        raise error

    def serve(self, peer: bytes, message: FromClient, payload: list[Any]) -> None:
        """Answer a message."""
        raise NotImplementedError

    def open(self) -> None:
        """Make what serves; the listener is there."""

    def check(self) -> None:
        """Do what is due at every turn."""

    def __enter__(self) -> Self:
        self.directory.create()
        self.listener = listen_for_clients(self.directory, self.config, time.monotonic)
        self.open()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(30)
        self.listener.close()
        if error is None and self._errors:
            raise self._errors[0]

    def _guarded(self) -> None:
        try:
            while not self._stop.is_set():
                self._turn()
        except BaseException as error:  # raised in the test's own thread
            self._errors.append(error)

    def _turn(self) -> None:
        while self._todo:
            what, done = self._todo.pop(0)
            what()
            done.set()
        self.listener.wait(POLL_S)
        for peer, message, payload in self.listener.serve(ALL):
            if isinstance(message, RemoteProtocolError):
                self.refuse(peer, message)
                continue
            self.received.append(message)
            if (client_id := getattr(message, "client_id", "")) != "":
                self.peers[client_id] = peer
            self.serve(peer, message, payload)
        self.check()


class _FakeService(ServiceThread):
    def __init__(self, path: Path, reply: Reply) -> None:
        super().__init__(path)
        self._reply = reply

    def serve(self, peer: bytes, message: FromClient, payload: list[Any]) -> None:
        for answer in [WELCOME] if isinstance(message, ClientHello) else self._reply(message):
            self.listener.try_send(peer, answer)


@contextmanager
def fake_service(path: Path, reply: Reply) -> Iterator[list[FromClient]]:
    """Serve `path` in a thread; yield the list of messages that have come so far."""
    with _FakeService(path, reply) as service:
        yield service.received


class StoreService(ServiceThread):
    """The real desk on a real ring, and a model that says its prompt.

    Args:
        config: settings of the store.
    Attributes:
        hold: messages of these kinds wait until `release`, so that their answers come late.
        num_held: how many messages wait.
        encoder_fingerprint: as an engine has said it; none has, at first.
        keys: what the output of an image, or of a slice, is said to be found under, by those that take keys.
        rows: what is said of the rows of a generation to those.
    """

    def __init__(self, path: Path, **config: Any) -> None:
        super().__init__(path, **({"store_gb": 1 / 64, "store_max_object_mb": 8} | config))
        self.hold: tuple[type, ...] = ()
        self.encoder_fingerprint = ""
        self.keys: dict[bytes, str] = {}
        self.rows: list[SavedRows] = []
        self._held: list[tuple[bytes, FromClient, list[Any]]] = []

    @property
    def num_held(self) -> int:
        return len(self._held)

    def release(self) -> None:
        """Serve what was held, and hold nothing more."""
        self.hold = ()
        self.call(self._serve_held)

    def encodes(self) -> list[Encode]:
        """Return what was asked to be encoded."""
        return [message for message in self.received if isinstance(message, Encode)]

    @property
    def leases(self) -> int:
        """Leases that are out."""
        found: list[int] = []
        self.call(lambda: found.append(self.desk.stats().ring.leases))
        return found[0]

    def open(self) -> None:
        self.desk = Store(self.config, channel=self.listener, clock=time.monotonic)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            self.desk.close()

    def check(self) -> None:
        guard = Guard()
        self.desk.go_on(guard)
        assert not guard.num_faults
        self.desk.check(time.monotonic())

    def serve(self, peer: bytes, message: FromClient, payload: list[Any]) -> None:
        if isinstance(message, self.hold):
            self._held.append((peer, message, payload))
        else:
            self._serve(peer, message, payload)

    def _serve_held(self) -> None:
        held, self._held = self._held, []
        for peer, message, payload in held:
            self._serve(peer, message, payload)

    def _send(self, peer: bytes, message: object, payload: Any = ()) -> bool:
        return self.listener.try_send(peer, message, payload)

    def _serve(self, peer: bytes, message: FromClient, payload: list[Any]) -> None:
        match message:
            case ClientHello():
                self.desk.greet(peer, message.client_id, message.name)
                ring, epoch, limits = self.desk.announcement, self.desk.records.epoch, message_limits(self.config)
                placed_bytes = self.desk.nurseries.max_record_bytes
                fingerprints = self.encoder_fingerprint, FINGERPRINTS
                welcome = Welcome("store", 258, 257, 64, 8192, ring, epoch, limits, placed_bytes, *fingerprints)
                algorithm, is_on = self.config.mm_hasher_algorithm, self.desk.second_level.is_on
                self._send(peer, replace(welcome, hasher_algorithm=algorithm, has_second_level=is_on))
            case ClientBye():
                self.desk.end_client(message.client_id)
            case Flush():
                self.desk.flush(is_new_epoch=message.new_epoch)
                self._send(peer, Flushed(message.request_id))
            case Cancel():
                self.desk.cancel(message.client_id, message.request_id)
            case Generate():
                assert isinstance(message.prompt, list)
                if message.stream_window:
                    for first in range(len(message.prompt) - 1):
                        self._send(peer, tokens(message.request_id, first, message.prompt[first]))
                saved = self.rows if message.takes_keys else []
                self._send(peer, Generated(message.request_id, message.prompt, "length", 1, 0, [], saved))
            case Encode():
                num_images = len(payload) - len(message.clips)
                clips = [slices_of(bytes(file)) for file in payload[num_images:]]
                items = [*map(bytes, payload[:num_images]), *chain.from_iterable(clips)]
                tensors = [Tensor(index, "int32", (len(item) // 4,)) for index, item in enumerate(items)]
                outputs: list[EncoderOutput] = [{"embeddings": tensor} for tensor in tensors]
                if message.takes_keys:
                    outputs = [self.keys.get(item, output) for item, output in zip(items, outputs, strict=True)]
                times = [[time_of(index) for index in range(len(clip))] for clip in clips]
                self._send(peer, Encoded(message.request_id, outputs, times), items)
            case Probe():
                self._send(peer, Probed(message.request_id, [0], 2, []))
            case _:
                self.desk.handle(peer, message, payload)  # type: ignore[arg-type]
