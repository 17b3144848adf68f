"""A table of the stats page: counters by key (client, tenant), in rows of whole cache lines.

    +0   key: 32 bytes, UTF-8, padded with zeros; the first word is written last, 0 = the row is free
    +32  the figures of the table's record

The writer of a role's slot also writes its tables. A row belongs to its key for the life of the page, across restarts
of the role: counters continue. Row 0 is `OTHER`, for longer keys and for those for which no row is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mmcached.shm.stats.layout import KEY_WORDS, NUM_ROWS, PlacedTable
from mmcached.wire.figures import OTHER


def read_table(words: memoryview[int], table: PlacedTable) -> dict[str, Any]:
    """Return the record of each key with a figure other than 0.

    Args:
        words: The words of the table.
    """
    figures = {key: _figures(words, table, row) for row, key in enumerate(_keys(words, table))}
    return {key: table.fields.build(values) for key, values in figures.items() if any(values)}


class TableWriter:
    """The only writer of a table; counts on from the figures that it finds."""

    def __init__(self, words: memoryview[int], table: PlacedTable) -> None:
        self._words = words
        self._table = table
        if not words[0]:
            self._write_key(0, OTHER)
        self._key_to_row = {key: row for row, key in enumerate(_keys(words, table))}
        self._base = [_figures(words, table, row) for row in range(NUM_ROWS)]
        self._last: Mapping[str, msgspec.Struct] = {}

    def publish(self, stats: msgspec.Struct) -> None:
        """Store the changes of the table since the last call; its figures count from the start of this process."""
        by_key: Mapping[str, msgspec.Struct] = getattr(stats, self._table.field)
        if by_key == self._last:
            return
        self._last = by_key
        totals: dict[int, list[int]] = {}
        for key, record in by_key.items():
            row = self._row_of(key)
            values = zip(totals.get(row, self._base[row]), self._table.fields.values(record), strict=True)
            totals[row] = [before + more for before, more in values]
        for row, total in totals.items():
            first = row * self._table.row_words + KEY_WORDS
            for index, value in enumerate(total):
                self._words[first + index] = value

    def close(self) -> None:
        self._words.release()

    def _row_of(self, key: str) -> int:
        """Return the row of a key; 0, that of `OTHER`, if the key is too long or no row is left for it."""
        if key not in self._key_to_row:
            row = len(self._key_to_row)
            if row == NUM_ROWS or not 0 < len(key.encode()) <= 8 * KEY_WORDS:
                return 0
            self._write_key(row, key)
            self._key_to_row[key] = row
        return self._key_to_row[key]

    def _write_key(self, row: int, key: str) -> None:
        text = memoryview(key.encode().ljust(8 * KEY_WORDS, b"\0")).cast("q")
        for index in reversed(range(KEY_WORDS)):
            self._words[row * self._table.row_words + index] = text[index]


def _figures(words: memoryview[int], table: PlacedTable, row: int) -> list[int]:
    first = row * table.row_words + KEY_WORDS
    return words[first : first + len(table.fields.names)].tolist()


def _keys(words: memoryview[int], table: PlacedTable) -> list[str]:
    """Return the keys of the rows, in their order."""
    keys = []
    for first in range(0, NUM_ROWS * table.row_words, table.row_words):
        if not words[first]:
            break
        text = words[first : first + KEY_WORDS].tobytes()
        keys.append(text.rstrip(b"\0").decode("utf-8", "replace"))
    return keys
