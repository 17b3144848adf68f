"""Versions that operators give to what their hosts compute: `mmcached flush --version v2`.

    name of a record ──version of the host──> its name on the server: hosts of two versions never meet
    "version" ──> the version of the host that was flushed last, by which the others notice that theirs is another

A version is compared, not drawn: a host that is flushed with it once more, or later than others, finds what hosts of
this version have saved.
"""

from __future__ import annotations

import hashlib
import logging
import re
from typing import NamedTuple

from mmcached.second_level.backend import Got, Value
from mmcached.second_level.records import HEAD_BYTES

log = logging.getLogger("mmcached.second_level")

VERSION_NAME = "version"
"""Name of the value with the version of the host that was flushed last."""
_BEGIN = b"mmcached version "
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}", re.ASCII)


class Scope(NamedTuple):
    """What a host saves and finds.

    Attributes:
        epoch: Number of its epoch; 0 before it has one.
        version: Its version; "" without one.
        drop_id: Of one record: the id of its last drop, see `drops`; "" without one.
    """

    epoch: int = 0
    version: str = ""
    drop_id: str = ""

    def name(self, name: str) -> str:
        """Return the name on the server of a record.

        >>> Scope(7).name("abc"), Scope(7, "v2").name("abc") == Scope(8, "v2").name("abc")
        ('abc', True)
        """
        if not self.version and not self.drop_id:
            return name
        text = f"{self.version}/{name}" + (f"/{self.drop_id}" if self.drop_id else "")
        return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def is_version(text: str) -> bool:
    return _VERSION.fullmatch(text) is not None


def value_of(version: str) -> bytes:
    return (_BEGIN + version.encode()).ljust(HEAD_BYTES)  # it is read with the heads of records


def version_in(value: Got) -> str | None:
    """Return the version in a value of the server; None if there is none.

    >>> version_in(value_of("v2")), version_in(b"mmcached version ../"), version_in(None)
    ('v2', None, None)
    """
    if not isinstance(value, Value) or not bytes(value).startswith(_BEGIN):
        return None
    text = bytes(value)[len(_BEGIN) :].rstrip(b" ").decode("ascii", "replace")
    return text if is_version(text) else None


def warn_of(own: str, last: str | None) -> None:
    """Log that the host that was flushed last has another version than this one."""
    log.warning(
        "this host has version %s, the host that was flushed last has %s: they share nothing; "
        "mmcached flush --version here",
        own or "none",
        last,
    )
