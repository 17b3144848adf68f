"""The version of the protocol between processes."""

from __future__ import annotations

PROTOCOL_VERSION = 28
"""Rises with every change of a message; enforced by `tests/wire/test_version.py`."""
VERSION_FIELD = "protocol_version"
"""Name of the version's field in a run directory's `config.json`."""


def mismatch(found: object) -> str:
    return f"protocol version {found}, this side speaks {PROTOCOL_VERSION}; upgrade the older side"
