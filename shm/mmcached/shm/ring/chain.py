"""Linked list of a ring's chunks in the order of their offsets.

    edge ⇄ A ⇄ C ⇄ D ⇄ edge      free bytes lie between the end of one chunk and the offset of the next

The edge is a sentinel for the end and the start of the ring: as the successor of the last chunk its offset is the
capacity, as the predecessor of the first chunk its end is 0. So a traversal has no special case for either.

Invariant: `a.next.prev is a`.

>>> edge = Chunk.edge(100)
>>> Chunk(Extent(0, 50, 20)).link(edge)
>>> [chunk.offset for chunk in edge.others()], edge.next.next.offset, edge.prev.prev.end
([50], 100, 0)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Extent(NamedTuple):
    """Bytes `[offset, offset + size)` that belong to slot id `slot`."""

    slot: int
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


class Chunk:
    """A taken extent, its state for eviction, and its neighbours.

    Attributes:
        hits: Hits that still count; see `allocator`.
        price: Cost of its eviction for a chunk on probation.
        is_on_probation: Its content has not been requested yet.
        worth: How many more hits each hit counts for; see `allocator`.
        is_untested: It was placed as proven, and has not been hit since.
        prev, next: Its neighbours; out of date in a chunk that is not linked.
    """

    __slots__ = ("end", "extent", "hits", "is_on_probation", "is_untested", "next", "offset", "prev", "price", "worth")

    def __init__(self, extent: Extent) -> None:
        self.extent = extent
        _, self.offset, size = extent  # copied, for speed
        self.end = self.offset + size
        self.is_on_probation = True
        self.is_untested = False
        self.prev = self.next = self
        self.hits = self.price = self.worth = 0

    @classmethod
    def edge(cls, capacity: int) -> Chunk:
        edge = cls(Extent(-1, capacity, 0))
        edge.end = 0
        return edge

    def set_hits(self, hits: int) -> None:
        self.hits = hits
        self.price = 0 if self.is_on_probation and not hits else 1 + hits

    def leave_probation(self) -> None:
        self.is_on_probation = False
        self.set_hits(0)

    def link(self, before: Chunk) -> None:
        self.prev, self.next = before, before.next
        self.prev.next = self.next.prev = self

    def unlink(self) -> None:
        self.prev.next, self.next.prev = self.next, self.prev

    def others(self) -> Iterator[Chunk]:
        """Yield all other chunks, from the next one on, once around."""
        chunk = self.next
        while chunk is not self:
            yield chunk
            chunk = chunk.next

    def last_before(self, offset: int) -> Chunk:
        """Return the last other chunk that begins before `offset`, or this one if none does; searches from the end."""
        chunk = self.prev
        while chunk is not self and chunk.offset >= offset:
            chunk = chunk.prev
        return chunk
