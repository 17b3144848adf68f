"""Note behind each record in a ring, with the data that a successor of the ring's writer needs about the record.

bytes of the key (u32) │ key │ about: further data from the process that put the record
"""

from __future__ import annotations

import struct

_LENGTH = struct.Struct("<I")


def pack_note(key: str, about: bytes) -> bytes:
    name = _packed(key)
    return _LENGTH.pack(len(name)) + name + about


def note_bytes(key: str, about: bytes) -> int:
    """Return the size in bytes of `pack_note`'s result."""
    return _LENGTH.size + len(_packed(key)) + len(about)


def parse_note(note: bytes) -> tuple[str, bytes] | None:
    """Return the key and `about` of a note; None if it is invalid."""
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
