"""Reads the replies of a Redis server by a deadline; a large value goes from the socket into a buffer of its own.

It implements redis-py's parser interface, so that redis-py can open a connection and log in through it; then it is
called directly. Replies are not trusted: a length is checked before a buffer is allocated, a number before it is
parsed, and an invalid reply ends the connection.
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
"""Timeout of connecting and logging in; a caller that waits for it has its own deadline."""
_BUFFER_BYTES = 64 << 10
_COPIED_BYTES = 16 << 10
"""Up to this size a value is copied out of the common buffer."""
_NUMBER = re.compile(rb"-?[0-9]{1,19}")

Reply = Value | int | None | Exception


class Replies(BaseParser):
    """The replies on one connection; `socket` is None without a connection."""

    def __init__(self) -> None:
        self.socket: Any = None
        self._handshake_ends_at = 0.0
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._start = self._end = 0

    @property
    def has_unread(self) -> bool:
        """Whether unparsed bytes are in the buffer."""
        return self._end > self._start

    def on_connect(self, connection: Any) -> None:
        """Take over the socket of a connection that was just opened; called by redis-py."""
        self.socket = connection._sock
        self._start = self._end = 0
        self._handshake_ends_at = time.monotonic() + CONNECT_S

    def on_disconnect(self) -> None:
        """Drop the socket; called by redis-py."""
        self.socket = None

    def read_response(self, disable_decoding: bool = False, timeout: object = None) -> Reply:
        """Read a reply of the handshake; called by redis-py."""
        reply = self.read(self._handshake_ends_at)
        if isinstance(reply, RedisConnectionError):
            raise reply
        return reply

    def read(self, deadline: float) -> Reply:
        """Read one reply: a value, a number, None, or the error that the server has sent.

        Raises:
            BackendError: The connection cannot be used any more.
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
        raise BackendError(f"Redis sent an invalid reply: {kind + rest[:16]!r}")

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
        """Move unread bytes to the start of a full buffer; return by how many bytes they moved."""
        moved = 0
        if self._end == _BUFFER_BYTES:
            moved, unread = self._start, self._end - self._start
            if not moved:
                raise BackendError(f"Redis sent a line without an end in {_BUFFER_BYTES} bytes")
            self._buffer[:unread] = bytes(self._buffer[self._start : self._end])
            self._start, self._end = 0, unread
        return moved

    def _value(self, length: int, deadline: float) -> Value:
        if not 0 <= length <= MAX_VALUE_BYTES:
            raise BackendError(f"Redis sent a value of {length} bytes, the limit is {MAX_VALUE_BYTES}")
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
            raise BackendError("Redis sent a value without an end")
        return target.toreadonly()

    def _from_buffer(self, target: memoryview) -> int:
        """Move unread bytes into a target, as far as they reach; return their number."""
        taken = min(len(target), self._end - self._start)
        target[:taken] = self._buffer[self._start : self._start + taken]
        self._start += taken
        if self._start == self._end:
            self._start = self._end = 0
        return taken

    def _receive(self, target: memoryview, deadline: float) -> int:
        """Receive at least one byte."""
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
    """Set the socket's timeout to the time left; BackendLate if none is left."""
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise BackendLate("Redis has not answered in time")
    socket.settimeout(left_s)


def _error(text: str) -> Exception:
    try:
        error: Exception = BaseParser.parse_error(text)
    except (ValueError, IndexError):  # redis-py parses the text of some errors
        return ResponseError(text)
    return error


def _number(text: bytes) -> int:
    if not _NUMBER.fullmatch(text):
        raise BackendError(f"Redis sent an invalid number: {text[:16]!r}")
    return int(text)
