"""Looks at the first bytes of a file to see what it is, before a library is let near it.

Libraries for media read more than files of samples: lists that name other files and addresses (HLS, DASH, SDP, concat),
scripts, devices. Whoever sends a file chooses its bytes, so only what is known to hold its media itself goes on.

    >>> container_of(b"RIFF....WAVEfmt ", "audio")
    'wav'
"""

from __future__ import annotations

import re
from typing import Literal

from mmcached.clips.in_place import Contents
from mmcached.wire.errors import CorruptClip

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
        "mp3": re.compile(rb"ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]"),  # a tag, or a frame of layer III
    },
}
_NAMES = {"video": "MP4, QuickTime, Matroska, WebM or AVI", "audio": "WAV, FLAC, Ogg or MP3"}


def container_of(data: Contents, modality: Literal["video", "audio"]) -> str:
    """Return the name of the container that a file begins as.

    Raises:
        CorruptClip: it is none of those that are taken.
    """
    for name, signature in _SIGNATURES[modality].items():
        if signature.match(data):
            return name
    raise CorruptClip(modality, f"{len(data)} bytes", f"is no file of {_NAMES[modality]}")
