"""Makes files that lie, end too early, or ask for too much."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from tests.clips.files import encoded

_PARENTS = (b"moov", b"trak", b"mdia", b"minf", b"dinf", b"dref")


def box_of(data: bytes, name: bytes) -> int:
    """Return where the content of a box of an MP4 file begins."""
    return data.index(name) + 4


def patched(data: bytes, place: int, content: bytes) -> bytes:
    return data[:place] + content + data[place + len(content) :]


def referring_to(data: bytes, path: Path) -> bytes:
    """Return an MP4 file that says its samples lie in another one, as QuickTime's aliases do."""
    where = str(path).encode()
    name = path.name.encode()[:63]
    alias = b"\0" * 10 + b"\x04disk" + b"\0" * 23 + b"\0" * 12 + bytes([len(name)]) + name.ljust(63, b"\0")
    alias += b"\0" * 16 + struct.pack(">HH", 1, 1) + b"\0" * 16
    for kind, text in ((18, where), (2, where), (0, path.parent.name.encode())):
        alias += struct.pack(">HH", kind, len(text)) + text + b"\0" * (len(text) % 2)
    alias += struct.pack(">HH", 0xFFFF, 0)
    entry = struct.pack(">I4sI", 12 + len(alias), b"alis", 0) + alias
    place = data.index(b"url ") - 4
    data = data[:place] + entry + data[place + 12 :]
    for parent in _PARENTS:
        start = data.index(parent) - 4
        (size,) = struct.unpack_from(">I", data, start)
        data = patched(data, start, struct.pack(">I", size + len(entry) - 12))
    return data


def silence(seconds: float, *, rate: int = 16_000, claimed_samples: int | None = None) -> bytes:
    """Return a FLAC file of zeros, which take next to no bytes."""
    data = encoded(np.zeros(round(seconds * rate), np.float32), rate, "FLAC")
    return data if claimed_samples is None else claiming(data, claimed_samples)


def claiming(data: bytes, num_samples: int) -> bytes:
    """Return a FLAC file that says it has so many samples; 0: it does not say."""
    place = 8 + 10
    fields = int.from_bytes(data[place : place + 8], "big")
    return patched(data, place, (fields >> 36 << 36 | num_samples).to_bytes(8, "big"))
