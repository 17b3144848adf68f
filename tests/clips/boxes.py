"""Builds small files of encoded frames, each with the times that a test wants."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np


class Packet(NamedTuple):
    """An encoded frame, and when it is shown."""

    time_ms: int
    data: bytes
    is_key: bool = True


def jpeg(width: int, height: int, shade: int = 128) -> bytes:
    return cv2.imencode(".jpg", np.full((height, width, 3), shade, np.uint8))[1].tobytes()


def avi(
    frames: Sequence[bytes],
    size: tuple[int, int],
    *,
    fps: int = 10,
    scale: int = 1,
    claimed_frames: int | None = None,
    num_streams: int = 1,
) -> bytes:
    """Return an AVI file of frames, each a JPEG file.

    Args:
        fps, scale: a frame is shown for `scale / fps` seconds.
        claimed_frames: in its headers; None: as many as there are.
        num_streams: the others have no frames.
    """
    width, height = size
    num = len(frames) if claimed_frames is None else claimed_frames
    header = struct.pack("<14I", 1_000_000 // fps, 0, 0, 0x10, num, 0, num_streams, 1 << 20, width, height, 0, 0, 0, 0)
    numbers = struct.pack(
        "<IHHIIIIIIIIhhhh", 0, 0, 0, 0, scale, fps, 0, num, 1 << 20, 2**32 - 1, 0, 0, 0, width, height
    )
    picture = struct.pack("<IiiHH4sIIIII", 40, width, height, 1, 24, b"MJPG", width * height * 3, 0, 0, 0, 0)
    stream = _list(b"strl", _chunk(b"strh", b"vidsMJPG" + numbers) + _chunk(b"strf", picture))
    body = _list(b"hdrl", _chunk(b"avih", header) + stream * num_streams)
    chunks, index = b"", b""
    for frame in frames:
        index += b"00dc" + struct.pack("<III", 0x10, 4 + len(chunks), len(frame))
        chunks += _chunk(b"00dc", frame)
    body += _list(b"movi", chunks) + _chunk(b"idx1", index)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"AVI " + body


def matroska(packets: Sequence[Packet], size: tuple[int, int], codec: str = "V_MJPEG", private: bytes = b"") -> bytes:
    """Return a Matroska file of encoded frames, of up to half a minute.

    Args:
        private: what the codec needs beside the frames.
    """
    picture = _element(0xE0, _element(0xB0, _number(size[0])) + _element(0xBA, _number(size[1])))
    track = _element(0xD7, _number(1)) + _element(0x73C5, _number(1)) + _element(0x83, _number(1))
    track += _element(0x86, codec.encode()) + (_element(0x63A2, private) if private else b"") + picture
    cluster = _element(0xE7, _number(0))
    for packet in packets:
        head = struct.pack(">BhB", 0x81, packet.time_ms, 0x80 * packet.is_key)
        cluster += _element(0xA3, head + packet.data)
    info = _element(0x1549A966, _element(0x2AD7B1, _number(1_000_000)))
    segment = info + _element(0x1654AE6B, _element(0xAE, track)) + _element(0x1F43B675, cluster)
    return _element(0x1A45DFA3, _element(0x4282, b"matroska")) + _element(0x18538067, segment)


def h264(shades: Sequence[int], *, key_every: int = 12) -> tuple[list[Packet], bytes]:
    """Return frames of 64 x 48 pixels as H.264 has them, and what belongs before them, as ISO containers keep it.

    A key frame has its shade everywhere, the others only in their left upper corner: what they have beside that comes
    from the frame before. So one that is decoded without those before it shows.

    Args:
        shades: 16 to 235.
    """
    parameters = _Bits().fixed(66, 8).fixed(0xC0, 8).fixed(10, 8)
    parameters.counts(0, 0, 2, 1).fixed(0, 1).counts(3, 2).fixed(0b11_0_0, 4)
    sequence = b"\x67" + parameters.ended()
    picture = (
        b"\x68" + _Bits().counts(0, 0).fixed(0, 2).counts(0, 0, 0).fixed(0, 3).counts(0, 0, 0).fixed(0b100, 3).ended()
    )
    private = b"\x01" + sequence[1:4] + b"\xff\xe1" + struct.pack(">H", len(sequence)) + sequence
    private += b"\x01" + struct.pack(">H", len(picture)) + picture
    packets = []
    for number, shade in enumerate(shades):
        since_key = number % key_every
        bits = _Bits()
        if since_key == 0:
            bits.counts(0, 7, 0).fixed(0, 4).counts(0).fixed(0, 2).counts(0, 1)
            for _ in range(12):
                bits.counts(25).block(shade)
        else:
            bits.counts(0, 5, 0).fixed(since_key % 16, 4).fixed(0, 3).counts(0, 1)
            bits.counts(0, 30).block(shade).counts(11)
        unit = (b"\x41" if since_key else b"\x65") + bits.ended()
        packets.append(Packet(40 * number, struct.pack(">I", len(unit)) + unit, not since_key))
    return packets, private


def with_edits(data: bytes, entries: Sequence[tuple[int, int]]) -> bytes:
    """Return an MP4 file whose first track has this edit list.

    Args:
        data: of one whose tables are behind its frames.
        entries: of each part its length, in the movie's units, and where it begins, in those of the track; -1: nothing.
    """
    table = struct.pack(">II", 0, len(entries)) + b"".join(struct.pack(">IiI", *entry, 1 << 16) for entry in entries)
    movie, track, media = (data.index(name) - 4 for name in (b"moov", b"trak", b"mdia"))
    (movie_size,), (track_size,) = (struct.unpack_from(">I", data, place) for place in (movie, track))
    old = data.find(b"edts", track, media) - 4
    head = data[track + 8 : old if old > 0 else media]
    new = _box(b"trak", head + _box(b"edts", _box(b"elst", table)) + data[media : track + track_size])
    grown = struct.pack(">I", movie_size + len(new) - track_size)
    return data[:movie] + grown + data[movie + 4 : track] + new + data[track + track_size :]


class _Bits:
    """Bits of H.264, one after the other."""

    def __init__(self) -> None:
        self._bits: list[str] = []

    def fixed(self, value: int, num: int) -> _Bits:
        self._bits.append(f"{value:0{num}b}")
        return self

    def counts(self, *values: int) -> _Bits:
        """Add numbers of which small ones are short; a signed 0 is the same as this one."""
        for value in values:
            self._bits.append(f"{value + 1:0{2 * (value + 1).bit_length() - 1}b}")
        return self

    def block(self, shade: int) -> _Bits:
        """Add the samples of a block, from a whole byte on."""
        self._bits = ["".join(self._bits)]
        self._bits.append("0" * (-len(self._bits[0]) % 8) + f"{shade:08b}" * 256 + f"{128:08b}" * 128)
        return self

    def ended(self) -> bytes:
        bits = "".join(self._bits) + "1"
        bits += "0" * (-len(bits) % 8)
        data = int(bits, 2).to_bytes(len(bits) // 8)
        escaped = bytearray()
        for byte in data:  # no start code may occur
            if byte <= 3 and escaped[-2:] == b"\0\0":
                escaped.append(3)
            escaped.append(byte)
        return bytes(escaped)


def _box(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(content), name) + content


def _number(value: int) -> bytes:
    return value.to_bytes(4)


def _element(name: int, content: bytes) -> bytes:
    return name.to_bytes((name.bit_length() + 7) // 8) + (1 << 56 | len(content)).to_bytes(8) + content


def _chunk(name: bytes, content: bytes) -> bytes:
    return name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def _list(name: bytes, content: bytes) -> bytes:
    return _chunk(b"LIST", name + content)
