"""One group of layers among the others: its kind, its place, and how its content is named in the pool.

The same tokens have other KV in another group, so the groups' content keys differ: the first group's are the digests
themselves, another's bear its number at the end. A group whose blocks are `ratio` times as long as a digest reaches
takes the last digest inside each block; the chain makes that one name the whole block.

    digests     d0  d1  d2  d3  d4 …          hash_block_size tokens each
    ratio 2         k0      k1                 k0 = d1, k1 = d3

Knows nothing of block ids, requests or steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

Run = tuple[int, int]
"""Positions in a block table: the first, and that behind the last."""

DIGEST_TAG_BYTES = 2
NEVER = 1 << 62


class CachedPrefix(Protocol):
    """What is cached of one sequence, for one group, by position in the block table."""

    def leading(self, num_blocks: int) -> list[int]:
        """Return the blocks at positions 0, 1, … up to the first that is not there, at most so many."""

    def at(self, index: int) -> int | None:
        """Return the block at this position, or None."""


class GroupKind(Protocol):
    """What a kind of attention decides, beside groups that may have larger blocks. Stateless.

    Attributes:
        block_size: tokens per block.
        is_downward_closed: whether a hit that is cut short is a hit too.
    """

    block_size: int
    is_downward_closed: bool

    def longest_hit(self, cached: CachedPrefix, max_blocks: int) -> list[int]:
        """Return the longest prefix behind which a request can go on, by position; null blocks where none is needed.

        Args:
            max_blocks: what must be cached ends here at the latest; what is recomputed is left out of the hit.
        """

    def runs_for_hits(self, start: int, stop: int) -> Iterable[Run]:
        """Return which of the blocks at these positions a hit can need; in no hit at all, the others are looked at."""

    def num_left_behind(self, num_computed_tokens: int) -> int:
        """Return how many leading blocks no later token looks at."""

    def releases_at(self, num_left_behind: int) -> int:
        """Return the number of computed tokens at which more than these blocks are left behind, or `NEVER`."""

    def most_blocks_held(self, num_tokens: int, most_new_tokens: int) -> int:
        """Return how many blocks a sequence of this length holds at most, on the way there and at its end.

        Args:
            most_new_tokens: that are computed at once.
        """

    def num_common_prefix_blocks(self, table: Sequence[int], is_shared_by_all: Callable[[int], bool]) -> int:
        """Return how many leading blocks all running requests have in common."""


@dataclass(frozen=True, slots=True)
class Group:
    """A kind, and its place among the groups.

    Attributes:
        index: in the configuration, and in every tuple that is sorted by group.
        ratio: digests per block.
        stride: blocks from one place where a hit of all groups may end to the next.
        num_recomputed: blocks behind that place that must be cached, too.
        tag: end of this group's content keys; empty for the first group.
    """

    index: int
    kind: GroupKind
    block_size: int
    ratio: int
    stride: int
    num_recomputed: int
    tag: bytes

    def num_for_hits_within(self, num_tokens: int) -> int:
        """Return how many leading blocks hits can need that end within so many tokens."""
        num_blocks = num_tokens // (self.stride * self.block_size) * self.stride
        return num_blocks + self.num_recomputed if num_blocks else 0

    def keys(self, digests: Sequence[bytes], start: int, stop: int) -> Sequence[bytes]:
        """Return the content keys of the blocks at these positions."""
        ratio, tag = self.ratio, self.tag
        part = digests[start:stop] if ratio == 1 else digests[(start + 1) * ratio - 1 : stop * ratio : ratio]
        return [digest + tag for digest in part] if tag else part

    def iter_keys(self, digests: Sequence[bytes], start: int, stop: int) -> Iterable[bytes]:
        """As `keys`, without a copy if that can be."""
        if self.ratio == 1 and not self.tag:
            return islice(digests, start, stop)
        return self.keys(digests, start, stop)

    def key_at(self, digests: Sequence[bytes], index: int) -> bytes:
        """Return the content key of the block at one position."""
        return digests[(index + 1) * self.ratio - 1] + self.tag


def tag_of(index: int) -> bytes:
    """Return the end of a group's content keys.

    >>> tag_of(0), list(tag_of(3))
    (b'', [3, 0])
    """
    return index.to_bytes(DIGEST_TAG_BYTES, "little") if index else b""
