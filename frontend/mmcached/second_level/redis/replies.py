"""Reads what a Redis server says, by a deadline; a large value goes from the socket into a buffer of its own.

It is a parser in the sense of redis-py, so that a connection is opened and let in through it; then it is asked
directly. Nothing is believed: a length is judged before there is a buffer, a number before it is one, and what is no
reply ends the connection.
"""

from __future__ import annotations

import re
import time
from typing import Any

import numpy as np
from redis._parsers import BaseParser
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from mmcached.second_level.backend import BackendError, BackendLate, Value
from mmcached.second_level.records import MAX_VALUE_BYTES

CONNECT_S = 2.0
"""Until a connection is open and let in; who waits for it has a deadline of his own."""
_BUFFER_BYTES = 64 << 10
_COPIED_BYTES = 16 << 10
"""Up to this size a value is copied out of the common buffer."""
_NUMBER = re.compile(rb"-?[0-9]{1,19}")

Reply = Value | int | None | Exception


class Replies(BaseParser):
    """The replies on one connection.

    Attributes:
        socket: None: there is no connection.
    """

    def __init__(self) -> None:
        self.socket: Any = None
        self._handshake_ends_at = 0.0
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._start = self._end = 0

    @property
    def has_unread(self) -> bool:
        """Whether more has come than was read."""
        return self._end > self._start

    def on_connect(self, connection: Any) -> None:
        """Take over the socket of a connection that has just been opened; redis-py calls it."""
        self.socket = connection._sock
        self._start = self._end = 0
        self._handshake_ends_at = time.monotonic() + CONNECT_S

    def on_disconnect(self) -> None:
        """Let go of the socket; redis-py calls it."""
        self.socket = None

    def read_response(self, disable_decoding: bool = False, timeout: object = None) -> Reply:
        """Read a reply of the handshake; redis-py calls it."""
        reply = self.read(self._handshake_ends_at)
        if isinstance(reply, RedisConnectionError):
            raise reply
        return reply

    def read(self, deadline: float) -> Reply:
        """Read one reply: a value, a number, None, or the error that the server has answered.

        Raises:
            BackendError: the connection is of no use any more.
        """
        kind, rest = self._line(deadline)
        if kind == b"$":
            length = _number(rest)
            return None if length == -1 else self._value(length, deadline)
        if kind == b"+":
            return rest
        if kind == b":":
            return _number(rest)
        if kind == b"-":
            return _error(rest.decode(errors="replace"))
        raise BackendError(f"Redis answers what is no reply: {kind + rest[:16]!r}")

    def _line(self, deadline: float) -> tuple[bytes, bytes]:
        """Return the first byte of a line and the others, without its end."""
        searched = self._start
        while True:
            text = bytes(self._buffer[searched : self._end])
            at = text.find(b"\r\n")
            if at >= 0:
                line = bytes(self._buffer[self._start : searched + at])
                self._start = searched + at + 2
                return line[:1], line[1:]
            searched = max(self._start, self._end - 1)
            searched -= self._make_room()
            self._end += self._receive(self._buffer[self._end :], deadline)

    def _make_room(self) -> int:
        """Move what is not read yet to the buffer's start, if it has no end any more; return how far it was moved."""
        moved = 0
        if self._end == _BUFFER_BYTES:
            moved, unread = self._start, self._end - self._start
            if not moved:
                raise BackendError("Redis answers a line without an end")
            self._buffer[:unread] = bytes(self._buffer[self._start : self._end])
            self._start, self._end = 0, unread
        return moved

    def _value(self, length: int, deadline: float) -> Value:
        if not 0 <= length <= MAX_VALUE_BYTES:
            raise BackendError(f"Redis answers a value of {length} bytes, the limit is {MAX_VALUE_BYTES}")
        target = memoryview(bytearray(length)) if length <= _COPIED_BYTES else np.empty(length, np.uint8).data
        filled = self._from_buffer(target)
        while filled < length:
            filled += self._receive(target[filled:], deadline)
        end = bytearray(2)
        filled = self._from_buffer(memoryview(end))
        while filled < 2:
            self._start = self._end = 0
            self._end = self._receive(self._buffer, deadline)
            filled += self._from_buffer(memoryview(end)[filled:])
        if end != b"\r\n":
            raise BackendError("Redis answers a value without an end")
        return target.toreadonly()

    def _from_buffer(self, target: memoryview) -> int:
        """Move what is not read yet into a target as far as that goes; return how much."""
        taken = min(len(target), self._end - self._start)
        target[:taken] = self._buffer[self._start : self._start + taken]
        self._start += taken
        if self._start == self._end:
            self._start = self._end = 0
        return taken

    def _receive(self, target: memoryview, deadline: float) -> int:
        """Receive at least a byte."""
        wait_until(self.socket, deadline)
        try:
            received: int = self.socket.recv_into(target)
        except TimeoutError:
            raise BackendLate("Redis has not answered in time") from None
        except OSError as error:
            raise BackendError(f"the connection to Redis broke: {error}") from None
        if not received:
            raise BackendError("Redis has closed the connection")
        return received


def wait_until(socket: Any, deadline: float) -> None:
    """Let the socket's next operation last until then at most.

    Raises:
        BackendLate: that is over.
    """
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise BackendLate("Redis has not answered in time")
    socket.settimeout(left_s)


def _error(text: str) -> Exception:
    try:
        error: Exception = BaseParser.parse_error(text)
    except (ValueError, IndexError):  # redis-py takes the text of some apart
        return ResponseError(text)
    return error


def _number(text: bytes) -> int:
    if not _NUMBER.fullmatch(text):
        raise BackendError(f"Redis answers what is no number: {text[:16]!r}")
    return int(text)
