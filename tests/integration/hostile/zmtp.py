"""Speaks ZMTP 3 over a unix socket by hand: greeting, READY, frames of any length, whatever is said of them."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_MORE = 1
_LONG = 2
_COMMAND = 4


class RawPeer:
    """A connection that has said who it is, as a DEALER would.

    Args:
        routing_id: the name that it claims; b"" for none.
        is_ready: whether it ends the handshake.
    """

    def __init__(self, path: Path, *, routing_id: bytes = b"", is_ready: bool = True, timeout_s: float = 5.0) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(timeout_s)
        self.socket.connect(str(path))
        self.socket.sendall(_GREETING)
        if is_ready:
            ready = b"\x05READY" + _property(b"Socket-Type", b"DEALER") + _property(b"Identity", routing_id)
            self.socket.sendall(bytes([_COMMAND, len(ready)]) + ready)

    def send_frame(self, data: bytes, *, more: bool = False) -> None:
        self.socket.sendall(bytes([_LONG | (_MORE if more else 0)]) + struct.pack(">Q", len(data)) + data)

    def announce(self, nbytes: int) -> None:
        """Say that a last frame of so many bytes follows."""
        self.socket.sendall(bytes([_LONG]) + struct.pack(">Q", nbytes))

    def close(self) -> None:
        self.socket.close()


def empty_frames(count: int) -> bytes:
    """Return so many empty frames that one message goes on after."""
    return bytes([_MORE, 0]) * count


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
