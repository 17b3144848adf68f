"""Sends pieces of bytes over sockets that do not block: what the kernel takes now, and later the rest.

Knows nothing of what they mean. A peer that is gone takes nothing: reading tells.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence

Piece = bytes | bytearray | memoryview

MAX_PIECES = 64
"""Pieces in one call to the kernel."""


def nbytes(piece: Piece) -> int:
    return piece.nbytes if isinstance(piece, memoryview) else len(piece)


def kept(piece: Piece) -> memoryview:
    """Return what stays as it is until it is sent."""
    is_fixed = isinstance(piece, bytes) or (isinstance(piece, memoryview) and isinstance(piece.obj, bytes))
    return memoryview(piece if is_fixed else bytes(piece)).cast("B")


def send_now(to: socket.socket, pieces: list[Piece]) -> list[Piece]:
    """Send what the kernel takes at once; return what is left."""
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
    """Send what the kernel takes of a queue in one call; return how many bytes have left it."""
    num_sent = left = send_once(to, [queue[index] for index in range(min(MAX_PIECES, len(queue)))])
    while left:
        piece = queue.popleft()
        if left < piece.nbytes:
            queue.appendleft(piece[left:])
            break
        left -= piece.nbytes
    return num_sent


def send_once(to: socket.socket, pieces: Sequence[Piece]) -> int:
    """Return how many bytes the kernel has taken; 0 if none now, or never again."""
    try:
        if len(pieces) == 1:
            return to.send(pieces[0], socket.MSG_NOSIGNAL)
        return to.sendmsg(pieces, (), socket.MSG_NOSIGNAL)
    except OSError:
        return 0
