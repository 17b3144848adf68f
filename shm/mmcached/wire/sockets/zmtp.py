"""The ZMTP 3.0 protocol without a socket, mechanism NULL: as a ROUTER or as a DEALER.

    both     signature FF 8×00 7F, version 3.0, "NULL", zeros                    64 bytes
    both     04 size 05 "READY" (name-size name value-size:4 value)*             a command
    both     (flags size body)*       flags: 1 more frames follow, 2 size has 8 bytes instead of 1, 4 a command

`MessageReader` assembles messages within limits: a message with too many frames or bytes is an error as soon as that is
known, and the rest of it is discarded as it comes, without using memory; later messages are read normally. The memory
of a message within the limits grows with the received bytes: a frame's announced size is compared with the limits, and
nothing is allocated for it. Source: rfc.zeromq.org, 23/ZMTP.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence

from mmcached.wire.errors import RemoteProtocolError

Frame = bytes | bytearray | memoryview

GREETING = b"\xff" + bytes(8) + b"\x7f" + bytes((3, 0)) + b"NULL".ljust(20, b"\0") + bytes(32)
MORE, LONG, COMMAND = 1, 2, 4
LARGE_FRAME = 1 << 14
"""Size from which frames are received into a buffer of their own; smaller ones are cut out of the received bytes."""
FIRST_BUFFER_BYTES = 1 << 16
"""Size of a large frame's first buffer. A full buffer is replaced by one that is `BUFFER_GROWTH` times as large."""
BUFFER_GROWTH = 4
MAPPED_BYTES = 1 << 22
"""From this size on the buffer has room for the whole frame: an anonymous mapping, whose pages are committed one by one
when bytes are written to them, as huge pages where the kernel has them.
"""
HUGE_PAGE_BYTES = 1 << 21
ROOM_BYTES = 1 << 18
"""Bytes received at once: one peer's large frame takes a millisecond of a loop that has other peers."""
FRAMES_AT_ONCE = 64
MAX_COMMAND_BYTES = 1 << 10
MAX_SHORT_BYTES = 255
_SHORT_HEADS = [[bytes((flags, size)) for size in range(MAX_SHORT_BYTES + 1)] for flags in (0, MORE)]


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value


def handshake(role: bytes) -> bytes:
    """Return all bytes that a ROUTER or DEALER sends before messages; it need not wait for the peer's."""
    ready = b"\x05READY" + _property(b"Socket-Type", role) + _property(b"Identity", b"")
    return GREETING + bytes((COMMAND, len(ready))) + ready


def pack(frames: Sequence[Frame]) -> list[Frame]:
    """Return the bytes of one message in few pieces: small frames are joined, large ones are not copied."""
    pieces: list[Frame] = []
    small: list[Frame] = []
    num_left = len(frames)
    for frame in frames:
        num_left -= 1
        more = MORE if num_left else 0
        size = frame.nbytes if type(frame) is memoryview else len(frame)
        if size <= MAX_SHORT_BYTES:
            small += (_SHORT_HEADS[more][size], frame)
            continue
        head = (more | LONG).to_bytes() + size.to_bytes(8, "big")
        if size < LARGE_FRAME:
            small += (head, frame)
        else:
            small.append(head)
            pieces += (b"".join(small), frame)
            small = []
    if small:
        pieces.append(b"".join(small))
    return pieces


def _mapped(num_bytes: int) -> mmap.mmap:
    """Return memory without committed pages; it lives as long as its views."""
    mapped = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped


class MessageReader:
    """Assembles the messages of one connection: add bytes with `feed` or `room`, then take messages until None.

    Args:
        peer: `ROUTER` or `DEALER`, the required role of the other side.
        max_frames, max_bytes: Limits of one message.
    """

    def __init__(self, peer: bytes, *, max_frames: int, max_bytes: int) -> None:
        self._peer = peer
        self._max_frames = max_frames
        self._max_bytes = max_bytes
        self._data = b""
        self._at = 0
        self._is_greeted = False
        self._frames: list[Frame] = []
        self._num_bytes = 0
        self._flags = 0
        self._large: bytearray | mmap.mmap | None = None  # the first bytes of the current frame, or room for them
        self._large_bytes = 0  # size of that frame
        self._left = 0  # missing bytes of the current frame: of `_large_bytes`, or to be discarded
        self._is_leaving_out = False
        self.is_ready = False
        self.has_more = False

    @property
    def is_mid_message(self) -> bool:
        """Whether a message, or the handshake, is incomplete."""
        return not self.is_ready or bool(
            self._frames or self._left or self._is_leaving_out or self._at < len(self._data)
        )

    @property
    def has_unread(self) -> bool:
        """Whether fed bytes are still unparsed."""
        return self._at < len(self._data)

    @property
    def num_held_bytes(self) -> int:
        """The most memory committed for an incomplete message; a few times the received bytes."""
        of_large = 0
        if self._large is not None:
            of_large = min(len(self._large), self._large_bytes - self._left + HUGE_PAGE_BYTES)
        return self._num_bytes + of_large + len(self._data) - self._at

    def room(self) -> memoryview | None:
        """Return where the next bytes may be written, followed by `filled`; None if they are to be fed.

        Raises:
            OSError: No memory can be mapped for them.
        """
        if self._large is None or self._at < len(self._data):
            return None
        start = self._large_bytes - self._left
        self._large = self._grown(self._large, start + 1)
        return memoryview(self._large)[start : start + ROOM_BYTES]

    def filled(self, num_bytes: int) -> None:
        self._left -= num_bytes

    def feed(self, data: bytes) -> None:
        self._data = self._data[self._at :] + data if self._at < len(self._data) else data
        self._at = 0

    def next_message(self) -> list[Frame] | None:
        """Return the next message; None if more bytes are needed or, with `has_more`, after many frames without an end.

        Raises:
            RemoteProtocolError: A message exceeds a limit, and is discarded; with `field` "zmtp": the peer does not
                speak ZMTP, and the connection is unusable.
        """
        if not self._is_greeted and not self._read_greeting():
            return None
        self.has_more = False
        if self._at == len(self._data) and self._large is None:
            return None
        if self.is_ready and not (self._frames or self._left or self._is_leaving_out):
            message = self._whole_message()
            if message is not None:
                return message
        for _ in range(FRAMES_AT_ONCE):
            if self._left and not self._end_body():
                return None
            frame = self._read_frame()
            if frame is None:
                return None
            if self._flags & COMMAND:
                self._hear(bytes(frame))
            elif self._is_leaving_out:
                self._is_leaving_out = bool(self._flags & MORE)
                self._num_bytes = 0
            else:
                self._frames.append(frame)
                self._num_bytes += len(frame)
                if not self._flags & MORE:
                    message, self._frames, self._num_bytes = self._frames, [], 0
                    return message
        self.has_more = True
        return None

    # ---- bytes to frames

    def _whole_message(self) -> list[Frame] | None:
        """Return the next message if all of its bytes have come and it is within the limits, as most messages are.

        Else it is None and nothing was taken: frame by frame the same bytes are read, or refused.
        """
        data, at, num_bytes = self._data, self._at, 0
        end = len(data)
        frames: list[Frame] = []
        for _ in range(min(FRAMES_AT_ONCE, self._max_frames)):
            if end - at < 2:
                return None
            flags = data[at]
            if flags <= MORE:
                body, size = at + 2, data[at + 1]
            elif flags <= MORE | LONG:
                body = at + 9
                size = int.from_bytes(data[at + 1 : body], "big")
            else:
                return None
            at = body + size
            num_bytes += size
            if at > end or num_bytes > self._max_bytes:
                return None
            frames.append(data[body:at])
            if not flags & MORE:
                self._at = at
                return frames
        return None

    def _read_greeting(self) -> bool:
        if len(self._data) < len(GREETING):
            return False
        greeting = self._data[: len(GREETING)]
        if greeting[0] != 0xFF or greeting[9] != 0x7F or greeting[10] < 3 or greeting[12:32] != GREETING[12:32]:
            raise RemoteProtocolError("no greeting of ZMTP 3 with mechanism NULL", "zmtp")
        self._at = len(GREETING)
        self._is_greeted = True
        return True

    def _end_body(self) -> bool:
        piece = self._data[self._at : self._at + self._left]
        if self._large is not None and piece:
            start = self._large_bytes - self._left
            self._large = self._grown(self._large, start + len(piece))
            self._large[start : start + len(piece)] = piece
        self._at += len(piece)
        self._left -= len(piece)
        return not self._left

    def _grown(self, buffer: bytearray | mmap.mmap, end: int) -> bytearray | mmap.mmap:
        if end <= len(buffer):
            return buffer
        size = min(self._large_bytes, max(end, BUFFER_GROWTH * len(buffer), FIRST_BUFFER_BYTES))
        larger = bytearray(size) if size < MAPPED_BYTES else _mapped(self._large_bytes)
        larger[: len(buffer)] = buffer
        return larger

    def _read_frame(self) -> Frame | None:
        """Return the next frame, b"" for a discarded one; None if more bytes are needed."""
        if self._large is not None:
            large, self._large = self._large, None
            return memoryview(large) if isinstance(large, mmap.mmap) else large
        data, at = self._data, self._at
        if len(data) - at < 2:
            return None
        flags = data[at]
        body = at + (9 if flags & LONG else 2)
        if len(data) < body:
            return None
        size = int.from_bytes(data[at + 1 : body], "big")
        self._check(flags, size)
        if self._is_leaving_out:
            self._flags = flags
            self._at = min(len(data), body + size)
            self._left = body + size - self._at
            return b""
        if len(data) >= body + size:
            self._flags = flags
            self._at = body + size
            return data[body : body + size]
        if size >= LARGE_FRAME:
            self._flags = flags
            self._large = bytearray()
            self._large_bytes = self._left = size
            self._at = body
            return self._read_frame() if self._end_body() else None
        return None

    def _check(self, flags: int, size: int) -> None:
        if flags & ~(MORE | LONG | COMMAND) or (flags & COMMAND and (flags & MORE or size > MAX_COMMAND_BYTES)):
            raise RemoteProtocolError(f"invalid frame: flags {flags:#04x} with {size} bytes", "zmtp")
        if not self.is_ready and not flags & COMMAND:
            raise RemoteProtocolError("a message before the handshake", "zmtp")
        if flags & COMMAND or self._is_leaving_out:
            return
        reason = ""
        if len(self._frames) >= self._max_frames:
            reason = f"more than {self._max_frames} frames"
        elif self._num_bytes + size > self._max_bytes:
            reason = f"{self._num_bytes + size} bytes or more, at most {self._max_bytes} (limits.max_message_mb)"
        if reason:
            self._is_leaving_out = True
            self._frames = []
            raise RemoteProtocolError(f"a message has {reason}; it is not read", "frames")

    # ---- frames to messages

    def _hear(self, command: bytes) -> None:
        """Handle the peer's READY; other commands are ignored."""
        if self.is_ready:
            return
        if not command.startswith(b"\x05READY") or _property(b"Socket-Type", self._peer) not in command:
            raise RemoteProtocolError(f"the peer is not a {self._peer.decode()}", "zmtp")
        self.is_ready = True
