"""Gathers the rows of one key of a generation in order: those that came inline, and those that the store has.

    put        inline: goes on the run that the last inline rows began
    put_saved  in the store: named; inline rows behind it begin another run

Positions are absolute. Invariant: no gap, but a named part may begin before the end of the one before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmcached.wire.errors import MissingRows
from mmcached.wire.messages.parts import Rows, SavedRows
from mmcached.wire.row_pieces import RowPieces
from mmcached.wire.sockets.frames import Frame


class RowParts:
    """Rows up to position `end` of one key.

    Attributes:
        saved: what the store has of them.
    """

    def __init__(self, key: str, first: int) -> None:
        self._key = key
        self._runs = [RowPieces(key, first)]
        self._num_before = 0  # named parts before the last run
        self.saved: list[SavedRows] = []
        self.end = first

    @property
    def run(self) -> RowPieces:
        """The last rows that came inline: all of them, where none are named."""
        return self._runs[-1]

    def put(self, rows: Rows, payload: Sequence[Frame]) -> None:
        """Take rows that came inline; raises as `RowPieces.put`."""
        if self._num_before < len(self.saved):
            self._num_before = len(self.saved)
            self._runs.append(RowPieces(self._key, self.end))
        self.run.put(rows, payload)
        self.end = self.run.end

    def put_saved(self, rows: SavedRows) -> None:
        """Take rows that are named, unless all of them were here before.

        Raises:
            MissingRows: they begin behind the end.
        """
        if rows.first > self.end:
            raise MissingRows(self._key, self.end, rows.first)
        if rows.end > self.end:
            self.saved.append(rows)
            self.end = rows.end

    def runs(self) -> Iterator[RowPieces]:
        """Yield what came inline, run by run; one empty run if there is nothing at all."""
        runs = [run for run in self._runs if len(run)]
        yield from runs or ([] if self.saved else self._runs)
