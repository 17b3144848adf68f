"""Describes one group of layers among the others: its kind, its place, and how its content is named in the pool.

The same tokens have other KV in another group, so the groups' content keys differ: the first group's are the block
hashes themselves, another's bear its number at the end. A group whose blocks are `ratio` times as long as a hash
reaches takes the last hash inside each block; the chain makes that one name the whole block.

    block hashes    h0  h1  h2  h3  h4 …          hash_block_size tokens each
    ratio 2             k0      k1                 k0 = h1, k1 = h3

Knows nothing of requests or steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from mmcached.engine.kv.pool.block_pool import BlockPool

Run = tuple[int, int]
"""Positions in a block table: the first, and that behind the last."""

DIGEST_TAG_BYTES = 2
NEVER = 1 << 62


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
            max_blocks: blocks that are looked for at most; those to be recomputed are among them, and not in the hit.
        """

    def runs_for_hits(self, start: int, stop: int) -> Iterable[Run]:
        """Return which of the blocks at these positions a hit can need."""

    def num_left_behind(self, num_computed_tokens: int) -> int:
        """Return how many leading blocks no later token looks at."""

    def releases_at(self, num_left_behind: int) -> int:
        """Return the number of computed tokens at which more than these blocks are left behind, or `NEVER`."""

    def most_blocks_held(self, num_tokens: int, most_new_tokens: int) -> int:
        """Return how many blocks a sequence of this length holds at most, on the way there and at its end.

        Args:
            most_new_tokens: tokens that are computed at once, at most.
        """

    def num_common_prefix_blocks(self, table: Sequence[int], is_shared_by_all: Callable[[int], bool]) -> int:
        """Return how many leading blocks all running requests have in common."""


@dataclass(frozen=True, slots=True)
class Group:
    """A kind, and its place among the groups.

    Attributes:
        index: position in the configuration, and in every tuple that is sorted by group.
        ratio: block hashes per block.
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

    def keys(self, block_hashes: Sequence[bytes], start: int, stop: int) -> Sequence[bytes]:
        """Return the content keys of the blocks at these positions."""
        ratio, tag = self.ratio, self.tag
        part = block_hashes[start:stop] if ratio == 1 else block_hashes[(start + 1) * ratio - 1 : stop * ratio : ratio]
        return [block_hash + tag for block_hash in part] if tag else part

    def key_at(self, block_hashes: Sequence[bytes], position: int) -> bytes:
        """Return the content key of the block at one position."""
        return block_hashes[(position + 1) * self.ratio - 1] + self.tag


class CachedPrefix:
    """What is cached of one sequence in one group, by position in the block table.

    Args:
        reserved: block by content key, for what an open step is going to write.
    """

    __slots__ = ("_block_hashes", "_group", "_pool", "_reserved")

    def __init__(
        self, pool: BlockPool, reserved: Mapping[bytes, int], group: Group, block_hashes: Sequence[bytes]
    ) -> None:
        self._pool = pool
        self._reserved = reserved
        self._group = group
        self._block_hashes = block_hashes

    def leading(self, num_blocks: int) -> list[int]:
        """Return the blocks at positions 0, 1, … up to the first that is not there, at most so many."""
        group = self._group
        is_plain = group.ratio == 1 and not group.tag  # then the hashes are the keys, and need not be copied
        keys = islice(self._block_hashes, num_blocks) if is_plain else group.keys(self._block_hashes, 0, num_blocks)
        found = self._pool.find_prefix(keys)
        if self._reserved:
            while len(found) < num_blocks and (block_id := self.at(len(found))) is not None:
                found.append(block_id)
        return found

    def at(self, position: int) -> int | None:
        """Return the block at this position, or None."""
        key = self._group.key_at(self._block_hashes, position)
        block_id = self._pool.find(key)
        return self._reserved.get(key) if block_id is None else block_id


def tag_of(index: int) -> bytes:
    """Return the end of a group's content keys.

    >>> tag_of(0), list(tag_of(3))
    (b'', [3, 0])
    """
    return index.to_bytes(DIGEST_TAG_BYTES, "little") if index else b""
