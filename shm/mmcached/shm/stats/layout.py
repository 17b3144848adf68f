"""Layout of the stats page: the meaning of each word of the file, and the conversion of records to words and back.

Knows nothing of files, locks or processes. The fields are those of the records of `mmcached.wire.stats`, flattened with
dotted names (`kv.queries`); a histogram has a word for each bucket, and its sum. A table (`by_client`) lies behind all
slots. All words are 8 bytes, aligned, in the order of this machine.

    ┌──────────────────────────┐ 0      magic; layout version and number of slots (u32 each);
    │ header                   │        digest of all names and kinds of fields (16 bytes)
    ├──────────────────────────┤ 4096
    │ slot of supervisor       │        +0   pid; 0 = never attached     +64  first field
    ├──────────────────────────┤        +8   attached at (ns)           +72  second field …
    │ slot of frontend         │        +16  heartbeat (ns)
    ├──────────────────────────┤        +24  processes attached so far
    │ slot of the second level │
    ├──────────────────────────┤
    │ engines 0…7              │
    ├──────────────────────────┤
    │ workers 0.0…0.15, 1.0…   │        ns of CLOCK_MONOTONIC, which all processes of a host share
    ├──────────────────────────┤
    │ tables                   │        see `table`
    └──────────────────────────┘

>>> [slot_of(role) for role in (RoleName("supervisor"), RoleName("engine", 3), RoleName("worker", 1, 2))]
[0, 6, 29]

A page counts only with the magic, this layout version and the digest of this version's fields.
"""

from __future__ import annotations

import hashlib
import struct
from collections import defaultdict
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from mmcached.wire.config import MAX_ENGINES
from mmcached.wire.engine_stats import EngineStats, WorkerStats
from mmcached.wire.errors import InvalidRequest, InvariantError, LayoutMismatch
from mmcached.wire.figures import MAX_KEYS, StatsRecord, figures, tables
from mmcached.wire.latency import Histogram
from mmcached.wire.slow_log import SlowLog
from mmcached.wire.stats import FrontendStats, RoleName, SecondLevelStats, SupervisorStats

LAYOUT_VERSION = 4
MAGIC = int.from_bytes(b"MMCSTAT\0", "little")
SLOT_BYTES = 4096
SLOT_WORDS = SLOT_BYTES // 8
MAX_RANKS = 16
"""Workers of an engine."""
ALL_ROLES = [
    RoleName("supervisor"),
    RoleName("frontend"),
    RoleName("second_level"),
    *(RoleName("engine", engine) for engine in range(MAX_ENGINES)),
    *(RoleName("worker", engine, rank) for engine in range(MAX_ENGINES) for rank in range(MAX_RANKS)),
]
"""The role of each slot."""
NUM_ROWS = MAX_KEYS + 1
"""Rows of a table."""
KEY_WORDS = 4

PID, ATTACHED, HEARTBEAT, NUM_ATTACHED, FIRST_FIELD = 0, 1, 2, 3, 8
"""Words of a slot."""

_HEADER = struct.Struct("<QII16s")
_RECORDS: dict[str, type[StatsRecord]] = {
    "supervisor": SupervisorStats,
    "frontend": FrontendStats,
    "second_level": SecondLevelStats,
    "engine": EngineStats,
    "worker": WorkerStats,
}
_SLOTS = {role: slot for slot, role in enumerate(ALL_ROLES)}


class Fields:
    """Figures of one kind of record, flattened.

    Without the records of other roles, which have slots of their own, and without tables.
    """

    def __init__(self, record: type[msgspec.Struct]) -> None:
        found = figures(record)
        self.record = record
        self.names = [word for figure in found for word in figure.words]
        self.is_gauge = [figure.is_gauge for figure in found for _ in figure.words]
        self._figures = found
        self._reads = [attrgetter(figure.name) for figure in found]
        if FIRST_FIELD + len(self.names) > SLOT_WORDS:
            raise InvariantError(f"{record.__name__} has {len(self.names)} words of figures: a slot is too small")

    def values(self, stats: msgspec.Struct) -> tuple[int, ...]:
        values: list[int] = []
        for read in self._reads:
            value = read(stats)
            if isinstance(value, (Histogram, SlowLog)):
                values += value.words()
            else:
                values.append(value)
        return tuple(values)

    def build(self, values: list[int]) -> Any:
        """Return the record with these values; its lists are empty."""
        nested: dict[str, Any] = {}
        words = iter(values)
        for figure in self._figures:
            *parents, leaf = figure.name.split(".")
            place = nested
            for parent in parents:
                place = place.setdefault(parent, {})
            own = list(islice(words, len(figure.words)))
            place[leaf] = msgspec.to_builtins(figure.block.of_words(own)) if figure.block else own[0]
        return msgspec.convert(nested, self.record)


FIELDS = {kind: Fields(record) for kind, record in _RECORDS.items()}
TABLE_FIELDS = {
    (kind, table.field): Fields(table.record) for kind, record in _RECORDS.items() for table in tables(record)
}


class PlacedTable(NamedTuple):
    """One role's table on the page.

    Attributes:
        first, num_words: Its words on the page, whole slots.
        row_words: Words of a row: the key, then the figures, then zeros up to whole cache lines.
    """

    field: str
    fields: Fields
    first: int
    num_words: int
    row_words: int


def _place_tables() -> tuple[dict[RoleName, list[PlacedTable]], int]:
    """Return the tables of each role, and the number of words of the page."""
    placed = defaultdict[RoleName, list[PlacedTable]](list)
    end = first_word(len(ALL_ROLES))
    for role in ALL_ROLES:
        for (kind, field), fields in TABLE_FIELDS.items():
            if kind == role.kind:
                if any(fields.is_gauge):
                    raise InvariantError(f"{kind}.{field} has a gauge: a table has counters only")
                row_words = -(-(KEY_WORDS + len(fields.names)) // 8) * 8
                num_words = -(-NUM_ROWS * row_words // SLOT_WORDS) * SLOT_WORDS
                placed[role].append(PlacedTable(field, fields, end, num_words, row_words))
                end += num_words
    return dict(placed), end


def slot_of(role: RoleName) -> int:
    """Return the index of a role's slot; raise InvalidRequest if the page has no slot for it."""
    if role not in _SLOTS:
        raise InvalidRequest("role", str(role), f"the stats page has {MAX_ENGINES} engines of {MAX_RANKS} workers")
    return _SLOTS[role]


def first_word(slot: int) -> int:
    return (1 + slot) * SLOT_WORDS


TABLES, _NUM_WORDS = _place_tables()
PAGE_BYTES = 8 * _NUM_WORDS


def names_digest() -> bytes:
    """Return 16 bytes that two versions share only if their fields have the same names, kinds and places."""
    text = [
        f"{kind}:{name}:{'gauge' if is_gauge else 'counter'}"
        for kind, fields in (FIELDS | TABLE_FIELDS).items()
        for name, is_gauge in zip(fields.names, fields.is_gauge, strict=True)
    ]
    return hashlib.sha256("\n".join(text).encode()).digest()[:16]


def pack_header() -> bytes:
    return _HEADER.pack(MAGIC, LAYOUT_VERSION, len(ALL_ROLES), names_digest())


def check_header(start: bytes, file_bytes: int) -> None:
    """Raise LayoutMismatch if a file of this size with this start is not a page, or has another version."""
    LayoutMismatch.unless_equal("file_bytes", file_bytes, PAGE_BYTES)
    magic, version, num_slots, digest = _HEADER.unpack_from(start)
    LayoutMismatch.unless_equal("magic", magic, MAGIC)
    LayoutMismatch.unless_equal("layout_version", version, LAYOUT_VERSION)
    LayoutMismatch.unless_equal("num_slots", num_slots, len(ALL_ROLES))
    LayoutMismatch.unless_equal("names_digest", digest.hex(), names_digest().hex())
