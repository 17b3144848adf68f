"""Which rows of an arena have bytes that are not there yet, and where these are instead.

    holder    per row: 0 in the arena; the number of a parcel
                       > 0 of one that is under way, < 0 of one that is kept on its device
    place     per row: which of that parcel's rows it is

The row decides, not the parcel: a row that is forgotten, written anew or moved belongs to no former parcel, and what a
parcel brings for it is thrown away. So a slot that has got another tenant is safe from what comes late.

Knows nothing of events or policies. Invariant: a row that has a holder is marked as written, and a parcel
counts the rows that it holds.
"""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

import numpy as np
import torch

from mmcached.wire.errors import InvariantError
from mmcached.worker.prefix_store.arena import RowArena
from mmcached.worker.prefix_store.transfer import Part


class Cutting(NamedTuple):
    """Rows out of parcels, to be sent together.

    Attributes:
        indexes: that they have in the arena.
        places: that they get: rows of `part`, one after the other.
        part: slices of the parcels.
    """

    indexes: np.ndarray
    places: np.ndarray
    part: Part


class Parcel:
    """Rows of one arena that were copied, or will be, together.

    Attributes:
        number: see above.
        rows: on their device, the first of them at place `base`; None once they are under way.
        kept_nbytes: that it takes on its device while it is kept there.
        num_live: rows of the arena that it holds.
        indexes: all that it has ever held.
    """

    __slots__ = ("base", "indexes", "kept_nbytes", "num_live", "number", "rows", "whereabouts")

    def __init__(self, number: int, whereabouts: Whereabouts, rows: torch.Tensor | None) -> None:
        self.number = number
        self.whereabouts = whereabouts
        self.rows = rows
        self.base = self.kept_nbytes = self.num_live = 0
        self.indexes: list[np.ndarray] = []

    @property
    def arena(self) -> RowArena:
        return self.whereabouts.arena

    def live(self) -> np.ndarray:
        """Return the indexes of the rows that it holds, each once."""
        if not self.num_live:
            return np.empty(0, dtype=np.int64)
        indexes = self.indexes[0] if len(self.indexes) == 1 else np.unique(np.concatenate(self.indexes))
        live: np.ndarray = indexes[self.whereabouts.holder[indexes] == self.number]
        return live


class ParcelBook:
    """The parcels of all arenas that hold any row.

    Attributes:
        of_number: see above.
        kept: those that are kept on their device, the oldest first.
        kept_nbytes: that these take.
    """

    def __init__(self) -> None:
        self.of_number: dict[int, Parcel] = {}
        self.kept: dict[int, Parcel] = {}
        self.kept_nbytes = 0
        self._numbers = count(1)

    def open(self, whereabouts: Whereabouts, rows: torch.Tensor | None, *, is_deferred: bool = False) -> Parcel:
        """Return a new parcel, which holds nothing yet."""
        number = next(self._numbers)
        parcel = Parcel(-number if is_deferred else number, whereabouts, rows)
        self.of_number[parcel.number] = parcel
        return parcel

    def keep(self, parcel: Parcel, rows: torch.Tensor, base: int) -> None:
        """A deferred parcel has got rows of its own."""
        parcel.rows, parcel.base, parcel.kept_nbytes = rows, base, rows.nbytes
        self.kept[parcel.number] = parcel
        self.kept_nbytes += parcel.kept_nbytes

    def close(self, number: int) -> None:
        """A parcel holds nothing any more."""
        parcel = self.of_number.pop(number)
        parcel.rows = None
        if self.kept.pop(number, None) is not None:
            self.kept_nbytes -= parcel.kept_nbytes


class Whereabouts:
    """Of the rows of one arena."""

    __slots__ = ("_book", "arena", "holder", "place")

    def __init__(self, arena: RowArena, book: ParcelBook) -> None:
        self.arena = arena
        self._book = book
        self.holder = np.zeros(arena.num_rows, dtype=np.int64)
        self.place = np.zeros(arena.num_rows, dtype=np.int64)

    def bind(self, indexes: np.ndarray, parcel: Parcel, places: np.ndarray) -> None:
        """Have a parcel hold rows instead of whoever did; each index once."""
        parcel.num_live += len(indexes)  # before it may lose the last row that it holds, and with it its number
        self.unbind(indexes)
        self.holder[indexes] = parcel.number
        self.place[indexes] = places
        parcel.indexes.append(indexes)

    def unbind(self, indexes: np.ndarray) -> None:
        """Have nobody hold these rows; each index once."""
        numbers = self.holder[indexes]
        if not numbers.any():
            return
        self.holder[indexes] = 0
        held, counts = np.unique(numbers, return_counts=True)
        for number, num_rows in zip(held.tolist(), counts.tolist(), strict=True):
            if number:
                parcel = self._book.of_number[number]
                parcel.num_live -= num_rows
                if not parcel.num_live:
                    self._book.close(number)

    def land(self, parcel: Parcel, rows: torch.Tensor) -> None:
        """Bring a parcel's rows, on the CPU, where they belong, as far as they still do; it holds nothing then."""
        live = parcel.live()
        if len(live):
            live = live[np.argsort(self.place[live])]
            self.arena.land(live, rows, self.place[live])
            self.holder[live] = 0
            parcel.num_live = 0
            self._book.close(parcel.number)

    def move(self, sources: np.ndarray, targets: np.ndarray) -> None:
        """Have the same parcels hold rows `targets` of what they hold of rows `sources`."""
        is_held = self.holder[sources] != 0
        for number in np.unique(self.holder[sources[is_held]]).tolist():
            part = self.holder[sources] == number
            self.bind(targets[part], self._book.of_number[number], self.place[sources[part]])
        self.unbind(sources)

    def devices(self, indexes: np.ndarray) -> dict[torch.device, np.ndarray]:
        """Return which of these rows, all in parcels that are not under way, lie on which device."""
        numbers = np.unique(self.holder[indexes]).tolist()
        of_device: dict[torch.device, list[int]] = {}
        for number in numbers:
            rows = self._book.of_number[number].rows
            if rows is None:
                raise InvariantError(f"{self.arena.name}: rows of parcel {number} are under way already")
            of_device.setdefault(rows.device, []).append(number)
        if len(of_device) == 1:
            return dict.fromkeys(of_device, indexes)
        return {device: indexes[np.isin(self.holder[indexes], own)] for device, own in of_device.items()}

    def cut(self, indexes: np.ndarray) -> Cutting:
        """Return these rows, all on one device: neighbours in one parcel are one piece.

        A single row between two neighbours is taken along: fewer pieces, of at most twice the size.
        """
        indexes = indexes[np.lexsort((self.place[indexes], self.holder[indexes]))]
        holders, places = self.holder[indexes], self.place[indexes]
        breaks = np.flatnonzero((holders[1:] != holders[:-1]) | (places[1:] > places[:-1] + 2)) + 1
        firsts, ends = np.concatenate(([0], breaks)), np.concatenate((breaks, [len(indexes)]))
        lows, highs = places[firsts], places[ends - 1] + 1
        begins = np.cumsum(highs - lows) - (highs - lows)
        pieces = []
        for number, low, high in zip(holders[firsts].tolist(), lows.tolist(), highs.tolist(), strict=True):
            parcel = self._book.of_number[number]
            if parcel.rows is not None:
                pieces.append(parcel.rows[low - parcel.base : high - parcel.base])
        part = Part(int((highs - lows).sum()), pieces)
        return Cutting(indexes, places + np.repeat(begins - lows, ends - firsts), part)

    def check_integrity(self) -> None:
        """Raise `InvariantError` if rows, marks and parcels contradict each other."""
        held = np.flatnonzero(self.holder)
        if not self.arena.are_written(held).all():
            raise InvariantError(f"{self.arena.name}: a row has a holder and was not written")
        num_held = 0
        for parcel in self._book.of_number.values():
            if parcel.whereabouts is self:
                live = parcel.live()
                num_held += len(live)
                if len(live) != parcel.num_live or not len(live):
                    counted = f"counts {parcel.num_live} row(s) and holds {len(live)}"
                    raise InvariantError(f"{self.arena.name}: parcel {parcel.number} {counted}")
                places = self.place[live] - parcel.base
                if places.min() < 0 or (parcel.rows is not None and places.max() >= len(parcel.rows)):
                    raise InvariantError(f"{self.arena.name}: parcel {parcel.number} lacks a row that it holds")
        if num_held != len(held):
            raise InvariantError(f"{self.arena.name}: {len(held)} row(s) have a holder, parcels hold {num_held}")
