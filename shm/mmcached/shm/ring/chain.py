"""Links the chunks of a ring in the order of their offsets, so that no walk along them searches.

    edge ⇄ A ⇄ C ⇄ D ⇄ edge      free bytes lie between the end of one chunk and the offset of the next

The edge is where the ring ends and begins: as the next of the last chunk its offset is the capacity, as the previous of
the first chunk its end is 0. So a walk needs no other case for either.

Knows nothing of hands, free slots, or eviction. Invariant: `a.next.prev is a`.

>>> edge = Chunk.edge(100)
>>> Chunk(Extent(0, 50, 20)).link(edge)
>>> [chunk.offset for chunk in edge.others()], edge.next.next.offset, edge.prev.prev.end
([50], 100, 0)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Extent(NamedTuple):
    """Bytes `[offset, offset + size)` that carry slot id `slot`."""

    slot: int
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


class Chunk:
    """An extent that is taken, what the hands must know of it, and its neighbours.

    Attributes:
        hits: hits that still count, see `allocator`.
        price: what it costs to evict it for a chunk on probation.
        is_on_probation: nobody has asked for its content yet.
        is_untested: it was placed as proven, and nobody has asked for it since.
        prev, next: its neighbours; out of date in a chunk that is not linked.
    """

    __slots__ = ("end", "extent", "hits", "is_on_probation", "is_untested", "next", "offset", "prev", "price")

    def __init__(self, extent: Extent) -> None:
        self.extent = extent
        _, self.offset, size = extent  # again, for speed
        self.end = self.offset + size
        self.is_on_probation = True
        self.is_untested = False
        self.prev = self.next = self
        self.hits = self.price = 0

    @classmethod
    def edge(cls, capacity: int) -> Chunk:
        """Make the edge of a ring without chunks."""
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
        """Yield all chunks behind this one, once around."""
        chunk = self.next
        while chunk is not self:
            yield chunk
            chunk = chunk.next

    def last_before(self, offset: int) -> Chunk:
        """Return the last of the others that begins before an offset, or this one; searched from the end."""
        chunk = self.prev
        while chunk is not self and chunk.offset >= offset:
            chunk = chunk.prev
        return chunk
