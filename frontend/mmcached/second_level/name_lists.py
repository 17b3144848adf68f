"""Keeps on the server, for each of a few hosts of a fleet, the names of the records that it has found last.

    a list      a record of its own on the server, under the name of its place: 32 bytes for each name, the newest first
    a place     one of `NUM_PLACES`, by host and run directory; of two hosts at one place the last list stays

A list is a hint: the names on it are fetched like any others, so a wrong one is a miss. A list that is damaged, or of
another epoch, version or form, is ignored. Invariant: of an outage at most the newest list is kept for later.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from itertools import islice, zip_longest

from xxhash import xxh3_64_intdigest

from mmcached.cache.store_keys import NAMES_TENANT, store_key
from mmcached.second_level.backend import BackendError
from mmcached.second_level.counts import Counts
from mmcached.second_level.first_level import FirstLevel
from mmcached.second_level.records import Found
from mmcached.second_level.shared_records import SharedRecords
from mmcached.wire.closeable import Closeable

log = logging.getLogger("mmcached.second_level")

NUM_PLACES = 16
NAME_BYTES = 32
MAX_LIST_BYTES = 1024 * NAME_BYTES
MAX_NAMES = 1024
"""Maximum number of names of all lists together that are reported."""
LIST_TTL_S = 86_400.0
CALL_S = 5.0
AGAIN_S = 1.0
"""The pause after a failed call."""


class NameLists(Closeable):
    """The lists of one fleet, for one host.

    Args:
        host: Identifies this host among the others, also after a restart.
    """

    def __init__(self, first: FirstLevel, records: SharedRecords, counts: Counts, *, host: str) -> None:
        self._first = first
        self._records = records
        self._counts = counts
        self._own_place = place_name(xxh3_64_intdigest(host.encode("utf-8", "surrogateescape")) % NUM_PLACES)
        self._changed = threading.Condition()
        self._names: Sequence[str] = ()
        self._is_asked = False
        self._is_closed = False
        self._life = 0

    def begin_life(self) -> None:
        """Forget all orders, after a restart of the frontend or a flush."""
        with self._changed:
            self._life += 1
            self._names, self._is_asked = (), False

    def order(self, names: Sequence[str], *, asks: bool) -> None:
        """Save the names if there are any; `asks`: report those of all hosts."""
        with self._changed:
            self._names = names or self._names
            self._is_asked |= asks
            self._changed.notify()

    def run(self) -> None:
        """Save and read lists until `close`; the body of a thread."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._is_asked or self._names)
                if self._is_closed:
                    return
                names, is_asked, life = self._names, self._is_asked, self._life
            try:
                if is_asked:  # first: this host's own list may be useful to itself
                    self._report(life)
                else:
                    self._save(names)
            except BackendError as error:
                log.debug("a list of names was not read or saved: %s", error)
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed, AGAIN_S)
            except Exception:
                self._counts.add(faults=1)
                log.exception("a list of names has failed unexpectedly")
                self.begin_life()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _report(self, life: int) -> None:
        places = [place_name(number) for number in range(NUM_PLACES)]
        found = self._records.get_many(places, deadline=time.monotonic() + CALL_S)
        lists = [names_in(b"".join(each.pieces)) for each in found if isinstance(each, Found)]
        with self._changed:
            if life != self._life:
                return
            self._is_asked = False
        self._first.names_told(list(merged(lists)))

    def _save(self, names: Sequence[str]) -> None:
        packed = b"".join(map(bytes.fromhex, names))
        self._records.save(self._own_place, [packed], ttl_s=LIST_TTL_S, deadline=time.monotonic() + CALL_S)
        with self._changed:
            if self._names is names:
                self._names = ()


def place_name(number: int) -> str:
    """Return the name under which the list of a place is saved."""
    return store_key(NAMES_TENANT, f"recent {number}")


def names_in(packed: bytes) -> list[str]:
    """Return the names in a list; none if it has another form.

    >>> names_in(bytes(64)) == ["00" * 32] * 2, names_in(bytes(33))
    (True, [])
    """
    if len(packed) % NAME_BYTES or len(packed) > MAX_LIST_BYTES:
        return []
    return [packed[at : at + NAME_BYTES].hex() for at in range(0, len(packed), NAME_BYTES)]


def merged(lists: Iterable[Sequence[str]]) -> Iterable[str]:
    """Return the names of all lists, the first of each before the second of each, and so on; each name once.

    >>> list(merged([["a", "b"], ["c", "a", "d"]]))
    ['a', 'c', 'b', 'd']
    """
    names = (name for each in zip_longest(*lists) for name in each if name is not None)
    return islice(dict.fromkeys(names), MAX_NAMES)
