"""Reads the edit list of the first video of an MP4 or QuickTime file: the parts of it that are shown.

A program that cuts a video without re-encoding it, as phones do, keeps the frames from the key frame before the cut on,
and the edit list has the time from which on they are shown. The earlier frames are decoded, but never shown.

    moov ─┬─ mvhd                      units per second of a part's length
          └─ trak ─┬─ edts ── elst     the parts: start in the track, and length
                   └─ mdia ─┬─ hdlr    whether it is a video
                            └─ minf ── stbl ─┬─ stts    empty where the frames come in fragments
                                             └─ ctts    delay from decoding to showing of the first frame

A missing or truncated box means no edit list: FFmpeg then refuses the file, or has no edit list either.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from fractions import Fraction
from itertools import dropwhile, islice
from math import floor
from typing import NamedTuple

from mmcached.clips.in_place import Contents

_ENTRIES = {0: struct.Struct(">Ii4x"), 1: struct.Struct(">Qq4x")}
"""An entry's length and start, by the version of its box; its speed is ignored, as FFmpeg does."""

_EMPTY = -1
"""The start of a part in which nothing is shown."""


class ShownPart(NamedTuple):
    """A part of a track that is shown.

    Attributes:
        begin: Start, in units of the track.
        seconds: Length.
        first_frame: Time of the track's first frame without an edit list, in units of the track.
    """

    begin: int
    seconds: Fraction
    first_frame: int

    def times(self, units_per_s: int) -> range:
        """Return the times of its frames without an edit list, in units of the track."""
        return range(self.begin, self.begin + floor(self.seconds * units_per_s + Fraction(1, 2)))


class _Box(NamedTuple):
    """The content of a box: its start, and the first byte behind it."""

    begin: int
    end: int


def parts_of(data: Contents) -> list[ShownPart]:
    """Return the first two shown parts of a file's first video; empty without an edit list.

    A delay before the first part is ignored. A file in fragments has no parts, because FFmpeg applies no edit list to
    it.
    """
    try:
        return list(islice(_parts(data), 2))
    except struct.error:  # truncated
        return []


def _parts(data: Contents) -> Iterator[ShownPart]:
    movie = _found(data, _Box(0, len(data)), b"moov")
    track = movie and next((box for box in _boxes(data, movie, b"trak") if _is_video(data, box)), None)
    header = movie and _found(data, movie, b"mvhd")
    table = track and _found(data, track, b"edts", b"elst")
    times = track and _found(data, track, b"mdia", b"minf", b"stbl", b"stts")
    if not (track and header and table and times) or _number(data, ">I", times.begin + 4) == 0:
        return
    units = _number(data, ">i", header.begin + (20 if _number(data, ">B", header.begin) == 1 else 12))
    entry = _ENTRIES[1 if _number(data, ">B", table.begin) == 1 else 0]
    first, num = table.begin + 8, max(0, table.end - table.begin - 8) // entry.size
    entries = entry.iter_unpack(memoryview(data)[first : first + num * entry.size])
    for length, begin in dropwhile(lambda each: each[1] == _EMPTY, entries):
        yield ShownPart(begin, Fraction(length, max(units, 1)), _first_offset(data, track))


def _first_offset(data: Contents, track: _Box) -> int:
    """Return the delay from decoding to showing of the first frame."""
    offsets = _found(data, track, b"mdia", b"minf", b"stbl", b"ctts")
    if offsets is None or offsets.end - offsets.begin < 16:
        return 0
    return _number(data, ">i", offsets.begin + 12)


def _is_video(data: Contents, track: _Box) -> bool:
    handler = _found(data, track, b"mdia", b"hdlr")
    return handler is not None and data[handler.begin + 8 : handler.begin + 12] == b"vide"


def _number(data: Contents, kind: str, place: int) -> int:
    number: int = struct.unpack_from(kind, data, place)[0]
    return number


def _found(data: Contents, box: _Box, *names: bytes) -> _Box | None:
    for name in names:
        inner = next(_boxes(data, box, name), None)
        if inner is None:
            return None
        box = inner
    return box


def _boxes(data: Contents, box: _Box, name: bytes) -> Iterator[_Box]:
    place = box.begin
    while place + 8 <= box.end:
        size, found = struct.unpack_from(">I4s", data, place)
        head = 8
        if size == 1:
            size, head = _number(data, ">Q", place + 8), 16
        elif size == 0:
            size = box.end - place
        if size < head:
            return
        if found == name:
            yield _Box(place + head, min(place + size, box.end))
        place += size
