"""Sends pieces of bytes over non-blocking sockets: as many as the kernel takes now, and later the rest.

A dead peer's socket takes nothing; reading reports its end.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence

Piece = bytes | bytearray | memoryview

MAX_PIECES = 64
LINGER_S = 2.0
"""How long a closing process goes on sending queued messages; bounds the duration of its end."""


def nbytes(piece: Piece) -> int:
    return piece.nbytes if isinstance(piece, memoryview) else len(piece)


def kept(piece: Piece) -> memoryview:
    """Return bytes that stay unchanged until they are sent; mutable ones are copied."""
    is_fixed = isinstance(piece, bytes) or (isinstance(piece, memoryview) and isinstance(piece.obj, bytes))
    return memoryview(piece if is_fixed else bytes(piece)).cast("B")


def send_now(to: socket.socket, pieces: list[Piece]) -> list[Piece]:
    """Send as many bytes as the kernel takes at once; return the unsent pieces."""
    while pieces:
        num_sent = send_once(to, pieces[:MAX_PIECES])
        if not num_sent:
            break
        done = 0
        while done < len(pieces) and num_sent >= (size := nbytes(pieces[done])):
            num_sent -= size
            done += 1
        pieces = pieces[done:]
        if num_sent:
            rest = memoryview(pieces[0]).cast("B")[num_sent:]
            pieces = [rest, *pieces[1:]]
    return pieces


def send_queued(to: socket.socket, queue: deque[memoryview]) -> int:
    """Send part of a queue in one system call, and remove it from the queue; return the number of sent bytes."""
    num_sent = left = send_once(to, [queue[index] for index in range(min(MAX_PIECES, len(queue)))])
    while left:
        piece = queue.popleft()
        if left < piece.nbytes:
            queue.appendleft(piece[left:])
            break
        left -= piece.nbytes
    return num_sent


def send_once(to: socket.socket, pieces: Sequence[Piece]) -> int:
    """Return the number of bytes that the kernel has taken; 0 if it takes none now, or the socket is dead."""
    try:
        if len(pieces) == 1:
            return to.send(pieces[0], socket.MSG_NOSIGNAL)
        return to.sendmsg(pieces, (), socket.MSG_NOSIGNAL)
    except OSError:
        return 0
