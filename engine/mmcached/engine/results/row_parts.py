"""Collects the rows of one key of a generation in order: rows received inline, and rows in the store.

    put        inline: extends the run of the last inline rows
    put_saved  in the store, by name; later inline rows begin another run

Positions are absolute. Invariant: no gap, but a saved part may begin before the end of the part before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmcached.wire.errors import MissingRows
from mmcached.wire.messages.parts import Rows, SavedRows
from mmcached.wire.row_pieces import RowPieces
from mmcached.wire.sockets.frames import Frame


class RowParts:
    """Rows of one key up to position `end`; `saved` lists those in the store."""

    def __init__(self, key: str, first: int) -> None:
        self._key = key
        self._runs = [RowPieces(key, first)]
        self._num_before = 0  # saved parts before the last run
        self.saved: list[SavedRows] = []
        self.end = first

    @property
    def run(self) -> RowPieces:
        """The last run of inline rows; the only run if no rows are saved."""
        return self._runs[-1]

    def put(self, rows: Rows, payload: Sequence[Frame]) -> None:
        if self._num_before < len(self.saved):
            self._num_before = len(self.saved)
            self._runs.append(RowPieces(self._key, self.end))
        self.run.put(rows, payload)
        self.end = self.run.end

    def put_saved(self, rows: SavedRows) -> None:
        """Add rows in the store, unless all were added before; raises `MissingRows` if they begin after the end."""
        if rows.first > self.end:
            raise MissingRows(self._key, self.end, rows.first)
        if rows.end > self.end:
            self.saved.append(rows)
            self.end = rows.end

    def runs(self) -> Iterator[RowPieces]:
        """Yield the non-empty inline runs; one empty run if there are no rows at all."""
        runs = [run for run in self._runs if len(run)]
        yield from runs or ([] if self.saved else self._runs)
