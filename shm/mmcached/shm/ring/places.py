"""Picks the cheapest of the next places. Pins are checked late, because a check costs more than comparing prices.

    price   1 2 1 3 1 … 2 1 │ 4 …      a place = some neighbours in a row of chunks, which would be evicted;
            └──── 128 ──────┘          its price = the sum of theirs

The first place with price 0 and no pinned chunk is taken at once; otherwise, after 128 places, the first of the
cheapest. Only then are its chunks checked; if one is pinned, the next cheapest is tried, and after all 128 the next
128.

Knows nothing of bytes, offsets and slots. Invariant: each chunk is checked at most once, and a place is refused only if
it has a pinned chunk.

>>> places = [(5, 0, 0, 2), (3, 0, 1, 3), (4, 0, 2, 4)]
>>> choose(iter(places), Pins(range(4), lambda chunk: chunk == 1))
(4, 0, 2, 4)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Generic, TypeVar

MANY_PLACES = 128

# (price, offset, index of the first chunk, index behind the last). A plain tuple, because dozens are made for each
# place that is taken.
Place = tuple[int, int, int, int]
_price = itemgetter(0)
Chunk = TypeVar("Chunk", bound=Hashable)


class Pins(Generic[Chunk]):
    """Cached answers of `is_pinned` during the search for one place.

    Args:
        row: The chunks passed so far, by index; a chunk may occur twice.
    """

    def __init__(self, row: Sequence[Chunk], is_pinned: Callable[[Chunk], bool]) -> None:
        self._row = row
        self._is_pinned = is_pinned
        self._answers: dict[Chunk, bool] = {}
        self._pinned: list[int] = []  # indexes, ascending

    def has_none(self, place: Place) -> bool:
        _, _, first, last = place
        nearest = bisect_left(self._pinned, first)
        if nearest < len(self._pinned) and self._pinned[nearest] < last:
            return False
        for index in range(first, last):
            chunk = self._row[index]
            is_pinned = self._answers.get(chunk)
            if is_pinned is None:
                is_pinned = self._answers[chunk] = self._is_pinned(chunk)
            if is_pinned:
                insort(self._pinned, index)
                return False
        return True


def choose(places: Iterator[Place], pins: Pins[Chunk]) -> Place | None:
    """Return the place to take; None if every place has a pinned chunk."""
    while True:
        seen: list[Place] = []
        for place in islice(places, MANY_PLACES):
            if not place[0] and pins.has_none(place):
                return place
            seen.append(place)
        found = _least(seen, pins)
        if found is not None or len(seen) < MANY_PLACES:
            return found


def _least(places: list[Place], pins: Pins[Chunk]) -> Place | None:
    least = min(places, key=_price, default=None)
    if least is None or pins.has_none(least):  # the usual case, without the cost of sorting
        return least
    return next(filter(pins.has_none, sorted(places, key=_price)), None)
