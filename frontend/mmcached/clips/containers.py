"""Detects a file's container from its first bytes, before a library reads it.

Media libraries also read lists that name other files and addresses (HLS, DASH, SDP, concat), scripts and devices. File
contents are untrusted, so only containers that hold their media themselves are accepted.

    >>> container_of(b"RIFF....WAVEfmt ", "audio")
    'wav'
"""

from __future__ import annotations

import re
from typing import Literal

from mmcached.clips.in_place import Contents
from mmcached.wire.errors import CorruptClip

_MPEG_FRAME = rb"\xff[\xe2\xe3\xf2\xf3\xfa\xfb]"
"""The beginning of a layer III frame."""

_SIGNATURES: dict[str, dict[str, re.Pattern[bytes]]] = {
    "video": {
        # The first box has a length and one of these names; a file for streaming begins with the last ones.
        "mp4": re.compile(rb"(?s)....(?:ftyp|moov|mdat|wide|free|skip|styp|moof)"),
        "matroska": re.compile(rb"\x1a\x45\xdf\xa3"),
        "avi": re.compile(rb"(?s)RIFF....AVI "),
    },
    "audio": {
        "wav": re.compile(rb"(?s)(?:RIFF|RF64)....WAVE"),
        "flac": re.compile(rb"fLaC"),
        "ogg": re.compile(rb"OggS"),
        "mp3": re.compile(rb"ID3|" + _MPEG_FRAME),
    },
}
_ID3_HEAD = 10
_OGG_HEAD = 27
"""In bytes."""

_NAMES = {"video": "MP4, QuickTime, Matroska, WebM or AVI", "audio": "WAV, FLAC, Ogg or MP3"}


def container_of(data: Contents, modality: Literal["video", "audio"]) -> str:
    """Return the name of a file's container; `CorruptClip` if it is not accepted."""
    for name, signature in _SIGNATURES[modality].items():
        if signature.match(data):
            return name
    raise CorruptClip(modality, f"{len(data)} bytes", f"is not a file of {_NAMES[modality]}")


def first_mpeg_frame(data: Contents) -> int | None:
    """Return the offset of an MP3 file's first frame, behind its tags; None for another format."""
    place = 0
    while data[place : place + 3] == b"ID3" and len(data) >= place + _ID3_HEAD:
        flags, *size = data[place + 5 : place + _ID3_HEAD]
        place += _ID3_HEAD + sum((byte & 0x7F) << shift for byte, shift in zip(size, (21, 14, 7, 0), strict=True))
        place += _ID3_HEAD if flags & 0x10 else 0
    return place if re.compile(_MPEG_FRAME).match(data, place) else None


def check_is_one_sound(data: Contents) -> None:
    """Refuse an Ogg file of several chained sounds as `CorruptClip`."""
    place, has_begun = 0, False
    while place + _OGG_HEAD <= len(data) and data[place : place + 4] == b"OggS":
        is_first_page = bool(data[place + 5] & 2)
        if is_first_page and has_begun:
            limit = "a chained file is not decoded: cut it at this byte, and send its parts"
            raise CorruptClip("audio", f"Ogg, another sound begins at byte {place}", limit)
        has_begun = not is_first_page
        body = place + _OGG_HEAD + data[place + _OGG_HEAD - 1]
        place = body + sum(data[place + _OGG_HEAD : body])
