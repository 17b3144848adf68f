"""What a transport promises to the measurement, and the messages between the writer and a reader process.

    writer → reader    session (1 byte), then what the transport says
    reader → writer    reader, session, when (CLOCK_MONOTONIC, ns), first and last element of the tensor
    session 255        control: MessagePack in both directions

Knows no transport. Several sessions are open at a time, so that rounds of one transport lie between those of others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import zmq

CONTROL = 255
READY = struct.Struct("<BBQff")
DEADLINE_MS = 60_000
"""No wait takes longer; then the measurement ends with an error."""


class Unavailable(Exception):
    """A peer is not installed here."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What one session carries.

    Attributes:
        item_bytes: of the tensor, float32.
        ring_bytes: room that a store may take.
    """

    item_bytes: int
    ring_bytes: int
    num_readers: int

    @property
    def lap(self) -> int:
        """How many items fill the ring, and one more."""
        return self.ring_bytes // self.item_bytes + 1


@dataclass(frozen=True, slots=True)
class Link:
    """A reader process's sockets.

    Attributes:
        index: which reader it is.
        inbox: where messages of all sessions arrive.
    """

    index: int
    inbox: zmq.Socket[bytes]
    outbox: zmq.Socket[bytes]
    context: zmq.Context[zmq.Socket[bytes]]
    directory: str

    def connect(self, index: int) -> zmq.Socket[bytes]:
        """Return a socket to another reader's inbox; the caller closes it."""
        return connect(self.context, self.directory, index)


class WriterEnd(Protocol):
    """The writer's half of one session."""

    name: str

    def begin(self, num_puts: int) -> None:
        """Announce that `num_puts` puts or hits follow."""

    def put(self, key: int, item: torch.Tensor) -> None:
        """Make a `(n,)` float32 tensor readable under a new key and tell every reader."""

    def hit(self, key: int) -> None:
        """Tell every reader where an item is that it holds, without its bytes."""

    def holds(self, key: int) -> bool:
        """Return whether the item can be hit: it has not been evicted."""

    def close(self) -> None: ...


class ReaderEnd(Protocol):
    """The reader's half of one session."""

    def serve(self, message: bytes, link: Link) -> Iterator[torch.Tensor]:
        """Yield the tensors that a message brings; when resumed, the tensor is no longer in use."""

    def close(self) -> None: ...


def connect(context: zmq.Context[zmq.Socket[bytes]], directory: str, index: int) -> zmq.Socket[bytes]:
    """Return a PUSH socket to the inbox of reader `index`."""
    socket = context.socket(zmq.PUSH)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.SNDTIMEO, DEADLINE_MS)
    socket.connect(f"ipc://{directory}/reader{index}")
    return socket


Options = dict[str, Any]
