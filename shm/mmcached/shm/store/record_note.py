"""The note behind each record in a ring: what a successor of the ring's writer must know of the record.

bytes of the key (u32) │ key │ about: what whoever put the record knows of it
"""

from __future__ import annotations

import struct

_LENGTH = struct.Struct("<I")


def pack_note(key: str, about: bytes) -> bytes:
    """Return the note that lies behind a record."""
    name = _packed(key)
    return _LENGTH.pack(len(name)) + name + about


def note_bytes(key: str, about: bytes) -> int:
    """Return the size of such a note."""
    return _LENGTH.size + len(_packed(key)) + len(about)


def parse_note(note: bytes) -> tuple[str, bytes] | None:
    """Return the key and `about` of a note; None if it is none."""
    if len(note) < _LENGTH.size:
        return None
    end = _LENGTH.size + _LENGTH.unpack_from(note)[0]
    try:
        key = note[_LENGTH.size : end].decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None
    return (key, note[end:]) if end <= len(note) else None


def _packed(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")
