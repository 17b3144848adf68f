"""Raises the limit of open descriptors of a role, and writes all bytes to a file.

Shells set the soft limit to 1024 for the sake of programs that use `select`; no role does.
"""

from __future__ import annotations

import os
import resource


def raise_descriptor_limit() -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def write_all(descriptor: int, data: bytes | bytearray | memoryview, place: int = 0) -> None:
    """Write all of the data at offset `place` of a file."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.pwrite(descriptor, rest, place + len(data) - len(rest)) :]
