"""Marks and announcements of dropped records: what each host knows of them, and their form on the server.

    mark of a name     "mmcached drop " │ id │ padding       the id is a part of the names of later records and claims
    log of drops       count of all drops │ padding │ name, id │ name, id …        the newest last, at most `MAX_LOGGED`

A host that finds a mark looks for records under the names with its id: so a record that was saved before the drop, or
that a host saves later because it does not know of the drop yet, is not found. The log says which records of their
stores hosts have to drop. Its count begins with a random number, so that another log is not taken for the known one.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections import OrderedDict
from typing import NamedTuple

from mmcached.second_level.backend import Got, Value
from mmcached.second_level.records import HEAD_BYTES

LOG_NAME = "drops"
"""Name of the value with the log."""
MAX_LOGGED = 1024
MAX_KNOWN = 16_384
"""Names of dropped records that a host remembers."""
ID_CHARACTERS, NAME_CHARACTERS = 16, 64
ENTRY_BYTES = NAME_CHARACTERS + ID_CHARACTERS
COUNT_DIGITS = 19
MAX_MISSED = 1 << 32
"""A larger difference of counts is that of two logs."""
_BEGIN = b"mmcached drop "
_MARK = re.compile(rb"mmcached drop ([0-9a-f]{16}) *")
_ENTRY = re.compile(rb"([0-9a-f]{64})([0-9a-f]{16})")


class Dropped(NamedTuple):
    """A record that a host has dropped, and the id of that drop."""

    name: str
    drop_id: str


def mark_name(name: str) -> str:
    """Return the name of the value with the mark of a record."""
    return f"drop {name}"


def mark_of(drop_id: str) -> bytes:
    """Return a mark; it is as long as the head of a record, with which it is read."""
    return (_BEGIN + drop_id.encode()).ljust(HEAD_BYTES)


def id_in(value: Got) -> str:
    """Return the id in a mark; "" if there is none.

    >>> id_in(mark_of("0123456789abcdef")), id_in(None), id_in(b"mmcached drop x")
    ('0123456789abcdef', '', '')
    """
    found = _MARK.fullmatch(value) if isinstance(value, Value) else None
    return found[1].decode() if found else ""


def entry_of(dropped: Dropped) -> bytes:
    return f"{dropped.name}{dropped.drop_id}".encode()


def count_in(value: Got) -> int:
    """Return the number of drops that a log has counted; 0 without a log."""
    digits = bytes(value[:COUNT_DIGITS]) if isinstance(value, Value) else b""
    return int(digits) if len(digits) == COUNT_DIGITS and digits.isdigit() else 0


def with_entry(log: Got, entry: bytes) -> bytes:
    """Return the log with one more drop, for a server that cannot append to it."""
    count = count_in(log) or secrets.randbits(52)
    entries = bytes(log[HEAD_BYTES:]) if isinstance(log, Value) else b""
    return f"{count + 1:0{COUNT_DIGITS}}".encode().ljust(HEAD_BYTES) + (entries + entry)[-MAX_LOGGED * ENTRY_BYTES :]


class KnownDrops:
    """The drops of which one host knows. Any thread may call."""

    def __init__(self) -> None:
        self._name_to_id: OrderedDict[str, str] = OrderedDict()
        self._own: dict[str, str] = {}
        self._applied: OrderedDict[str, str] = OrderedDict()  # by id: of names that were dropped here, too
        self._count = 0
        self._lock = threading.Lock()

    def id_of(self, name: str) -> str:
        """Return the id of the last drop of a name; "" if none is known."""
        with self._lock:
            return self._own.get(name) or self._name_to_id.get(name, "")

    def begin(self, name: str) -> str:
        """Begin a drop of this host, or go on with a failed drop; return its id."""
        with self._lock:
            drop_id = self._own.setdefault(name, secrets.token_hex(ID_CHARACTERS // 2))
            _remember(self._applied, drop_id, name)  # the frontend has dropped the record already
            return drop_id

    def done(self, dropped: Dropped) -> None:
        """Note that a drop of this host is on the server."""
        with self._lock:
            self._own.pop(dropped.name, None)
            _remember(self._name_to_id, *dropped)

    def see(self, name: str, mark: Got) -> None:
        """Note the mark of a name; an open drop of this host is later than any mark."""
        found = id_in(mark)
        with self._lock:
            if found and name not in self._own:
                _remember(self._name_to_id, name, found)

    def lost_id(self, name: str, mark: Got) -> str:
        """Return the id whose mark the server has lost; "" if it has not, or none is known."""
        with self._lock:
            return "" if mark is not None or name in self._own else self._name_to_id.get(name, "")

    def read_again(self) -> None:
        """Take the whole log for news: a frontend has records that may have been dropped meanwhile."""
        with self._lock:
            self._count = 0
            self._applied.clear()

    def is_news(self, head: Got) -> bool:
        """Return whether a log, by its first bytes, has more than this host has read."""
        count = count_in(head)
        return bool(count) and count != self._count

    def read_log(self, log: Got) -> tuple[list[str], bool]:
        """Note what a log has; return the names of records to drop here, and whether more were dropped than it has."""
        count = count_in(log)
        entries = bytes(log[HEAD_BYTES:]) if isinstance(log, Value) else b""
        found = [Dropped(each[1].decode(), each[2].decode()) for each in _ENTRY.finditer(entries)]
        with self._lock:
            num_new = count - self._count if self._count else len(found)
            self._count = count or self._count
            is_same_log = 0 <= num_new < MAX_MISSED
            new = found[len(found) - num_new :] if is_same_log and num_new <= len(found) else found
            news = [each for each in new if each.drop_id not in self._applied]
            for each in news:
                if each.name not in self._own:
                    _remember(self._name_to_id, *each)
                _remember(self._applied, each.drop_id, each.name)
        return list(dict.fromkeys(each.name for each in news)), is_same_log and num_new > len(found)


def _remember(known: OrderedDict[str, str], key: str, value: str) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > MAX_KNOWN:
        known.popitem(last=False)
