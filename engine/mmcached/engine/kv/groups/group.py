"""One group of layers: its kind of attention, its index, and its content keys in the pool.

The same tokens have different KV in each group, so content keys differ: the first group uses the block hashes, other
groups append their index. A group whose blocks are `ratio` times as long as `hash_block_size` uses the last hash inside
each block, which covers the whole block because hashes are chained.

    block hashes    h0  h1  h2  h3  h4 …          hash_block_size tokens each
    ratio 2             k0      k1                 k0 = h1, k1 = h3
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol, runtime_checkable

from mmcached.engine.kv.pool.block_pool import NULL_BLOCK_ID, BlockPool

Run = tuple[int, int]
"""Positions in a block table: (first, end)."""

DIGEST_TAG_BYTES = 2
NEVER = 1 << 62


class GroupKind(Protocol):
    """Hit rule and release rule of one kind of layer, next to groups that may have larger blocks. Stateless.

    Attributes:
        num_recomputed: blocks after a hit that must be cached, too.
        is_downward_closed: whether prefixes of a hit are hits, too.
        has_state: whether a block holds a state, which is overwritten in place, and which another request of the same
            step cannot read.
    """

    block_size: int
    num_recomputed: int
    is_downward_closed: bool
    has_state: bool

    def longest_hit(self, cached: CachedPrefix, max_blocks: int) -> list[int]:
        """Return the longest usable cached prefix, by position, with null blocks where no block is needed.

        Matches at most `max_blocks` blocks, including blocks to be recomputed, which are not in the hit.
        """

    def runs_for_hits(self, start: int, stop: int) -> Iterable[Run]:
        """Return the runs of positions in `start … stop - 1` that a hit can need."""

    def num_left_behind(self, num_computed_tokens: int) -> int:
        """Return the number of leading blocks that no later token attends to."""

    def releases_at(self, num_left_behind: int) -> int:
        """Return the number of computed tokens at which another block is left behind, or `NEVER`."""

    def most_blocks_held(self, num_tokens: int, most_new_tokens: int) -> int:
        """Return the most blocks a sequence holds until it has `num_tokens`, at most `most_new_tokens` per step."""

    def num_common_prefix_blocks(self, table: Sequence[int], is_shared_by_all: Callable[[int], bool]) -> int:
        """Return the number of leading blocks that all running requests share."""


class Growth(NamedTuple):
    """Tokens for which a block table must have blocks.

    Attributes:
        num_slots: all tokens, slots for a drafter included.
        num_tokens: tokens whose computation is scheduled.
        num_delivered: tokens of a new request that are delivered from elsewhere, its prefix hit included; 0 if none.
        num_encoder_tokens: outputs of the encoder; 0 if there are no new ones.
        is_new: whether the table has only a hit so far.
    """

    num_slots: int
    num_tokens: int
    num_delivered: int
    num_encoder_tokens: int
    is_new: bool


@runtime_checkable
class SparseKind(GroupKind, Protocol):
    """A kind whose tables do not have one block for each `block_size` slots."""

    def num_new_blocks(self, table: Sequence[int], growth: Growth) -> int:
        """Return the number of blocks that `extend_table` takes."""

    def extend_table(self, table: list[int], growth: Growth, block_ids: list[int]) -> None:
        """Give a table its new blocks, and null blocks where no state is kept."""


@dataclass(frozen=True, slots=True)
class Group:
    """Kind and position of a group among the groups.

    Attributes:
        ratio: block hashes per block.
        stride: distance in blocks between positions where a hit of all groups may end.
        tag: suffix of this group's content keys; empty for the first group.
    """

    index: int
    kind: GroupKind
    block_size: int
    ratio: int
    stride: int
    tag: bytes

    def num_for_hits_within(self, num_tokens: int) -> int:
        """Return the number of leading blocks that hits of at most `num_tokens` tokens can need."""
        num_blocks = num_tokens // (self.stride * self.block_size) * self.stride
        return num_blocks + self.kind.num_recomputed if num_blocks else 0

    def keys(self, block_hashes: Sequence[bytes], start: int, stop: int) -> Sequence[bytes]:
        ratio, tag = self.ratio, self.tag
        part = block_hashes[start:stop] if ratio == 1 else block_hashes[(start + 1) * ratio - 1 : stop * ratio : ratio]
        return [block_hash + tag for block_hash in part] if tag else part

    def key_at(self, block_hashes: Sequence[bytes], position: int) -> bytes:
        return block_hashes[(position + 1) * self.ratio - 1] + self.tag


class CachedPrefix:
    """Cached blocks of one sequence in one group, by position; `reserved` blocks will be written by the open step."""

    __slots__ = ("_block_hashes", "_group", "_pool", "_reserved")

    def __init__(
        self, pool: BlockPool, reserved: Mapping[bytes, int], group: Group, block_hashes: Sequence[bytes]
    ) -> None:
        self._pool = pool
        self._reserved = reserved
        self._group = group
        self._block_hashes = block_hashes

    def leading(self, num_blocks: int) -> list[int]:
        """Return the cached blocks from position 0 to the first gap, at most `num_blocks`."""
        group = self._group
        is_plain = group.ratio == 1 and not group.tag  # the keys are the hashes: no copy
        keys = islice(self._block_hashes, num_blocks) if is_plain else group.keys(self._block_hashes, 0, num_blocks)
        found = self._pool.find_prefix(keys)
        if self._reserved:
            while len(found) < num_blocks and (block_id := self.at(len(found))) is not None:
                found.append(block_id)
        return found

    def last(self, num_blocks: int, stride: int) -> list[int]:
        """Return the last cached block that ends at a multiple of `stride` blocks, after null blocks; [] if none is."""
        group, step = self._group, stride * self._group.ratio
        keys = self._block_hashes[step - 1 : num_blocks * group.ratio : step]
        if group.tag:
            keys = [key + group.tag for key in keys]
        find = self._find if self._reserved else self._pool.find
        for key in filter(find, reversed(keys)):  # no block has the id 0
            return [NULL_BLOCK_ID] * ((keys.index(key) + 1) * stride - 1) + [find(key) or NULL_BLOCK_ID]
        return []

    def at(self, position: int) -> int | None:
        return self._find(self._group.key_at(self._block_hashes, position))

    def _find(self, key: bytes) -> int | None:
        block_id = self._pool.find(key)
        return self._reserved.get(key) if block_id is None else block_id


def tag_of(index: int) -> bytes:
    """Return the suffix of a group's content keys.

    >>> tag_of(0), list(tag_of(3))
    (b'', [3, 0])
    """
    return index.to_bytes(DIGEST_TAG_BYTES, "little") if index else b""
