"""A ZMTP client by hand, which can say what libzmq never would."""

from __future__ import annotations

import socket

from mmcached.wire.closeable import Closeable
from mmcached.wire.sockets.zmtp import COMMAND, GREETING, LONG, MORE

DEADLINE_S = 20.0


def ready(socket_type: bytes = b"DEALER", identity: bytes = b"") -> bytes:
    body = b"\x05READY"
    for name, value in ((b"Socket-Type", socket_type), (b"Identity", identity)):
        body += bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value
    return bytes([COMMAND, len(body)]) + body


def frame(body: bytes, *, more: bool = False) -> bytes:
    return bytes([LONG | (MORE if more else 0)]) + len(body).to_bytes(8, "big") + body


def head(num_bytes: int, *, more: bool = False) -> bytes:
    """The head of a frame whose body never comes."""
    return bytes([LONG | (MORE if more else 0)]) + num_bytes.to_bytes(8, "big")


class RawPeer(Closeable):
    """One connection. With `shakes_hands` it has said who it is."""

    def __init__(self, address: str, *, shakes_hands: bool = True, identity: bytes = b"") -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect(address.removeprefix("ipc://"))
        if shakes_hands:
            self.socket.sendall(GREETING + ready(identity=identity))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_some(self, data: bytes) -> int:
        """Send what the kernel takes now."""
        self.socket.setblocking(False)
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0
        finally:
            self.socket.settimeout(DEADLINE_S)

    def is_closed(self) -> bool:
        """Whether the other side has closed the connection; what it said is thrown away."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(1 << 16):
                pass
        except BlockingIOError:
            return False
        except ConnectionError:
            pass
        finally:
            self.socket.settimeout(DEADLINE_S)
        return True

    def close(self) -> None:
        self.socket.close()
