"""Names of media: text that a caller chooses, a `Url` with its validator, or the `Path` of a file.

The name of a file contains path, device, inode, size, times and the boot of the host: a changed file has another name.
A file that is changing, or changed a moment ago, is not bound, because the clock of its times has steps.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mmcached.cache.aliases import alias_key
from mmcached.client.arguments import invalid, is_unicode, text_of
from mmcached.client.media_files import open_regular, read_open, stat_regular
from mmcached.client.store.hits import Hit
from mmcached.wire.errors import InvalidRequest

MAX_MEDIA_NAME_BYTES = 8192
SETTLED_NS = 50_000_000
"""Age of a file's last change below which it is not bound: the kernel's clock of file times has steps of up to 10 ms,
so a second change within one step would leave all times as they are.
"""


@dataclass(frozen=True, slots=True)
class Url:
    """The name of media at an address: its URL, and the validator of the content that the server has there now.

    Attributes:
        url: The address.
        validator: A strong `ETag`, or a version or digest that the URL's server gives: other content, other validator.

    Raises:
        InvalidRequest: A part is empty, too long, or not text; or the validator is weak (`W/"…"`): content that differs
            in some bytes may have the same weak validator.
    """

    url: str
    validator: str

    def __post_init__(self) -> None:
        for field, value in (("url", self.url), ("validator", self.validator)):
            _checked_text(field, value)
        if self.validator.startswith("W/"):
            raise InvalidRequest("validator", self.validator[:80], "a strong ETag, or another exact version")


MediaName = str | os.PathLike[str] | Url


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a name is bound to.

    Attributes:
        content: Digest of the content, in hex digits.
        hit: The record whose key `resolve` was given, under a lease if it is a view; None if the store lacks it.
    """

    content: str
    hit: Hit | None = None


def checked_name(name: Any, field: str = "name") -> str:
    """Return the store key of a name's binding.

    Raises:
        InvalidRequest: The name is of another type, empty or too long; or there is no regular file at the path.
    """
    if isinstance(name, Url):
        return alias_key("url", name.url, name.validator)
    if isinstance(name, os.PathLike):
        return _file_key(name, stat_regular(name, field))
    return alias_key("name", _checked_text(field, name))


def shown_name(name: MediaName) -> str:
    """Return the text of a valid name, for errors."""
    return name.url if isinstance(name, Url) else os.fsdecode(name)


def read_named_file(path: os.PathLike[str], key: str) -> tuple[bytes, bool]:
    """Return the bytes of a file, and whether they certainly are the content of its name with this key."""
    with open_regular(path, "name") as (fd, before):
        data = read_open(fd, before, path, "name")
        after = os.fstat(fd)
    is_still = _file_key(path, before) == _file_key(path, after) == key and len(data) == after.st_size
    is_settled = time.time_ns() - max(after.st_mtime_ns, after.st_ctime_ns) >= SETTLED_NS
    return data, is_still and is_settled


def _checked_text(field: str, value: Any) -> str:
    text = text_of(value)
    if text is None or not is_unicode(text) or not 1 <= len(text.encode()) <= MAX_MEDIA_NAME_BYTES:
        limit = f"text of 1 to {MAX_MEDIA_NAME_BYTES} bytes of UTF-8"
        raise invalid(field, value, limit if field != "name" else f"{limit}, a Url, or the pathlib.Path of a file")
    return text


def _file_key(path: os.PathLike[str], status: os.stat_result) -> str:
    numbers = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    return alias_key("file", _boot_id(), os.path.abspath(os.fsdecode(path)), *map(str, numbers))


@cache
def _boot_id() -> str:
    """Return the id of this boot of the host, so that no other host has the name of a file of this one."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
