"""Links the chunks of a ring in the order of their offsets, so that whoever walks it searches nothing.

    edge ⇄ A ⇄ C ⇄ D ⇄ edge      what is free lies between the end of one and the offset of the next

The edge is where the ring ends and begins: as the next of the last chunk its offset is the capacity, as what is before
the first one its end is 0. So a walk needs no other case for either.

Knows nothing of hands, slots that are free, or what goes. Invariant: `a.next.prev is a`.

>>> edge = Chunk.edge(100)
>>> Chunk(Extent(0, 50, 20)).link(edge)
>>> [chunk.offset for chunk in edge.others()], edge.next.next.offset, edge.prev.prev.end
([50], 100, 0)
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt
from typing import NamedTuple

NEW_HEAT = 1


def worth_of(heat: int, root: int) -> int:
    """Return what a chunk is worth; one that nobody hits is worth a sixteenth of a newcomer, which is more than a hole.

    Args:
        root: of its size in bytes, rounded down.
    """
    return (16 * heat + 1) * root


class Extent(NamedTuple):
    """Bytes `[offset, offset + size)` that carry slot id `slot`."""

    slot: int
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


class Chunk:
    """An extent that is taken, what it is worth, and its neighbours.

    Attributes:
        heat, worth: see `allocator`.
        was_hit: somebody has asked for it.
        root: of its size, rounded down.
        used_at: placed bytes when it was placed or hit last.
        prev, next: its neighbours; of one that is not linked they are out of date.
    """

    __slots__ = ("end", "extent", "heat", "next", "offset", "prev", "root", "used_at", "was_hit", "worth")

    def __init__(self, extent: Extent, heat: int = NEW_HEAT) -> None:
        self.extent = extent
        _, self.offset, size = extent  # again, for speed
        self.end = self.offset + size
        self.root = isqrt(size)
        self.used_at = 0
        self.was_hit = False
        self.prev = self.next = self
        self.set_heat(heat)

    @classmethod
    def edge(cls, capacity: int) -> Chunk:
        """Make the edge of a ring without chunks."""
        edge = cls(Extent(-1, capacity, 0))
        edge.end = 0
        return edge

    def set_heat(self, heat: int) -> None:
        self.heat = heat
        self.worth = worth_of(heat, self.root)

    def link(self, before: Chunk) -> None:
        self.prev, self.next = before, before.next
        self.prev.next = self.next.prev = self

    def unlink(self) -> None:
        self.prev.next, self.next.prev = self.next, self.prev

    def others(self) -> Iterator[Chunk]:
        """Yield all chunks behind this one, once around."""
        chunk = self.next
        while chunk is not self:
            yield chunk
            chunk = chunk.next

    def last_before(self, offset: int) -> Chunk:
        """Return the last of the others that begins before an offset, or this one; looked for from the end."""
        chunk = self.prev
        while chunk is not self and chunk.offset >= offset:
            chunk = chunk.prev
        return chunk
