"""Figures per client name, in the last slot of the stats page: one row of eight words for each name.

    +0   name: 32 bytes, ASCII, padded with zeros; the first word is written last, 0 = the row is free
    +32  the figures of `ClientStats`

The writer of the frontend's slot also writes this slot. A row belongs to its name for the life of the page, across
restarts of the frontend: counters continue. Row 0 is `OTHER_CLIENTS`, for the names for which no row is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from mmcached.shm.stats.layout import FIELDS, SLOT_WORDS
from mmcached.wire.stats import OTHER_CLIENTS, ClientStats

_ROW_WORDS, _NAME_WORDS = 8, 4
_NUM_ROWS = SLOT_WORDS // _ROW_WORDS
_FIELDS = FIELDS["client"]
_FIGURES = slice(_NAME_WORDS, _NAME_WORDS + len(_FIELDS.names))


def read_clients(words: memoryview[int]) -> dict[str, ClientStats]:
    """Return the figures of each name with a non-zero figure.

    Args:
        words: The page's last slot.
    """
    found = {}
    for row, name in enumerate(_names(words)):
        figures = words[row * _ROW_WORDS : (row + 1) * _ROW_WORDS][_FIGURES].tolist()
        if any(figures):
            found[name] = cast(ClientStats, _FIELDS.build(figures))
    return found


class ClientRowsWriter:
    """The only writer of the rows; counts on from the figures that it finds."""

    def __init__(self, words: memoryview[int]) -> None:
        self._words = words
        if not words[0]:
            self._name(0, OTHER_CLIENTS)
        self._name_to_row = {name: row for row, name in enumerate(_names(words))}
        self._base = read_clients(words)
        self._last: Mapping[str, ClientStats] = {}

    def publish(self, by_client: Mapping[str, ClientStats]) -> None:
        """Store the changes since the last call; the figures count from the start of this process."""
        if by_client == self._last:
            return
        self._last = by_client
        totals: dict[str, ClientStats] = {}
        for name, stats in by_client.items():
            name_of_row = self._with_row(name)
            totals[name_of_row] = totals.get(name_of_row, self._base.get(name_of_row, ClientStats())) + stats
        for name, total in totals.items():
            first = self._name_to_row[name] * _ROW_WORDS + _NAME_WORDS
            for index, value in enumerate(_FIELDS.values(total)):
                self._words[first + index] = value

    def close(self) -> None:
        self._words.release()

    def _with_row(self, name: str) -> str:
        if name not in self._name_to_row:
            row = len(self._name_to_row)
            if row == _NUM_ROWS:
                return OTHER_CLIENTS
            self._name(row, name)
            self._name_to_row[name] = row
        return name

    def _name(self, row: int, name: str) -> None:
        text = memoryview(name.encode("ascii").ljust(8 * _NAME_WORDS, b"\0")).cast("q")
        for index in reversed(range(_NAME_WORDS)):
            self._words[row * _ROW_WORDS + index] = text[index]


def _names(words: memoryview[int]) -> list[str]:
    names = []
    for first in range(0, SLOT_WORDS, _ROW_WORDS):
        if not words[first]:
            break
        text = words[first : first + _NAME_WORDS].tobytes()
        names.append(text.rstrip(b"\0").decode("ascii", "replace"))
    return names
