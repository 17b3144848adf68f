"""Set of byte offsets, kept as sorted intervals `[begin, end)` that neither overlap nor touch.

>>> room = Extents([(0, 30), (30, 40), (60, 100)])
>>> room.remove(10, 20); list(room), room.num_bytes, room.largest
([(0, 10), (20, 40), (60, 100)], 70, 40)
>>> room.find(20, start=30), room.find(20, start=90), room.find(50)
(60, 20, None)
>>> room.add(5, 60); list(room), room.around(50)
([(0, 100)], (0, 100))
>>> room.covers(0, 100), room.covers(99, 101)
(True, False)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class Extents:
    """Set of byte offsets. Adding bytes that are present, and removing bytes that are absent, changes nothing."""

    __slots__ = ("_begins", "_ends", "num_bytes")

    def __init__(self, extents: Iterable[tuple[int, int]] = ()) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        self.num_bytes = 0
        for begin, end in extents:
            self.add(begin, end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._begins, self._ends, strict=True)

    def __len__(self) -> int:
        return len(self._begins)

    def copy(self) -> Extents:
        made = Extents.__new__(Extents)
        made._begins, made._ends, made.num_bytes = self._begins.copy(), self._ends.copy(), self.num_bytes
        return made

    @property
    def largest(self) -> int:
        """The length of the longest interval, in bytes."""
        return max((end - begin for begin, end in self), default=0)

    def add(self, begin: int, end: int) -> None:
        if begin >= end:
            return
        begins, ends = self._begins, self._ends
        first, last = bisect_left(ends, begin), bisect_right(begins, end)
        if first == last:
            begins.insert(first, begin)
            ends.insert(first, end)
            self.num_bytes += end - begin
        else:  # it overlaps or touches the intervals from `first` to `last - 1`
            begin, end = min(begin, begins[first]), max(end, ends[last - 1])
            self.num_bytes += end - begin - sum(ends[first:last]) + sum(begins[first:last])
            begins[first:last], ends[first:last] = [begin], [end]

    def remove(self, begin: int, end: int) -> None:
        if begin >= end:
            return
        begins, ends = self._begins, self._ends
        first, last = bisect_right(ends, begin), bisect_left(begins, end)
        if first == last:
            return
        rest_begins, rest_ends = [], []
        if begins[first] < begin:
            rest_begins.append(begins[first])
            rest_ends.append(begin)
        if end < ends[last - 1]:
            rest_begins.append(end)
            rest_ends.append(ends[last - 1])
        self.num_bytes += sum(begins[first:last]) - sum(ends[first:last]) + sum(rest_ends) - sum(rest_begins)
        begins[first:last], ends[first:last] = rest_begins, rest_ends

    def covers(self, begin: int, end: int) -> bool:
        """Return whether all bytes of `[begin, end)`, at least one, are in the set."""
        index = bisect_right(self._begins, begin) - 1
        return begin < end and index >= 0 and end <= self._ends[index]

    def around(self, place: int) -> tuple[int, int] | None:
        """Return the interval that contains the byte at `place`; None if the set does not contain it."""
        index = bisect_right(self._begins, place) - 1
        return (self._begins[index], self._ends[index]) if index >= 0 and place < self._ends[index] else None

    def common(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of `[begin, end)` that are in the set."""
        first, last = bisect_right(self._ends, begin), bisect_left(self._begins, end)
        return [(max(begin, self._begins[i]), min(end, self._ends[i])) for i in range(first, last)]

    def find(self, size: int, start: int = 0) -> int | None:
        """Return the begin of the next `size` contiguous bytes, from `start` on, once around; None if none fit."""
        first = bisect_right(self._ends, start)
        for index in range(first, len(self._begins)):
            begin = max(self._begins[index], start)
            if self._ends[index] - begin >= size:
                return begin
        for index in range(min(first + 1, len(self._begins))):
            if self._ends[index] - self._begins[index] >= size:
                return self._begins[index]
        return None
