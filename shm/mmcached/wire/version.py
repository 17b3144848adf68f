"""The number by which two sides see that they were made for each other."""

from __future__ import annotations

PROTOCOL_VERSION = 15
"""Rises with every change of a message; `tests/wire/test_version.py` insists on it."""
VERSION_FIELD = "protocol_version"
"""Where a run directory's `config.json` has it."""


def mismatch(found: object) -> str:
    """Return what to say of another version."""
    return f"protocol version {found}, this side speaks {PROTOCOL_VERSION}; upgrade the older side"
