"""Mamba and linear attention: a block holds one state, that after all tokens up to the block's end.

A running request needs the state after its last token; it is updated in place, until the tokens of a block are full.
A hit needs the last state alone.

    mode "all"      | null | null |  3  |  4  | …      a state at each block's end
    mode "align"    | null | null | null|  4  | …      a state where a chunk has ended: others were not written
    mode "none"     |  1  |                            `block_size` is the longest sequence: one state

Draft tokens have states of their own, in the last `num_scratch` blocks of the table; a table that grows by more than
one block moves them to its new end.

In mode "align" a state can be shared only if a chunk ends at the end of its block: `chunk_end` says where a scheduler
should end one.

>>> kind = MambaAlign(4)
>>> kind.num_left_behind(4), kind.num_left_behind(5), kind.releases_at(0)
(0, 1, 5)
>>> table, growth = [7], Growth(16, 16, 0, 0, is_new=False)
>>> kind.num_new_blocks(table, growth)
1
>>> kind.extend_table(table, growth, [8])
>>> table
[7, 0, 0, 8]

Source: vLLM's MambaManager (blocks, their order, draft states). Differences: a state that a chunk has run past is not
published, and blocks are counted for delivered tokens, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.engine.kv.groups.group import CachedPrefix, Growth
from mmcached.engine.kv.groups.windowed import WindowedKind
from mmcached.engine.kv.pool.block_pool import NULL_BLOCK_ID


class Mamba(WindowedKind):
    """States at each block's end (modes "none" and "all"); `num_scratch` further blocks hold draft states."""

    has_state = True

    def __init__(self, block_size: int, *, num_scratch: int = 0, stride: int = 1) -> None:
        super().__init__(block_size, 1, stride=stride, num_recomputed=0)  # a drafter has no such layers
        self.num_scratch = num_scratch

    def longest_hit(self, cached: CachedPrefix, max_blocks: int) -> list[int]:
        return cached.last(max_blocks, self._stride)

    def num_left_behind(self, num_computed_tokens: int) -> int:
        return max(0, num_computed_tokens - 1) // self.block_size

    def releases_at(self, num_left_behind: int) -> int:
        return (num_left_behind + 1) * self.block_size + 1

    def most_blocks_held(self, num_tokens: int, most_new_tokens: int) -> int:
        num_states = -(-num_tokens // self.block_size)
        return min(num_states, -(-most_new_tokens // self.block_size) + 1) + self.num_scratch

    def num_new_blocks(self, table: Sequence[int], growth: Growth) -> int:
        return max(0, -(-growth.num_slots // self.block_size) + self.num_scratch - len(table))

    def extend_table(self, table: list[int], growth: Growth, block_ids: list[int]) -> None:
        table += block_ids


class MambaAlign(Mamba):
    """States at the ends of chunks (mode "align")."""

    def most_blocks_held(self, num_tokens: int, most_new_tokens: int) -> int:
        return min(2, -(-num_tokens // self.block_size)) + self.num_scratch  # the states before and after a step

    def num_new_blocks(self, table: Sequence[int], growth: Growth) -> int:
        _, num_null, num_moved, num_blocks = self._plan(len(table), growth)
        return num_blocks - len(table) - num_null - num_moved

    def extend_table(self, table: list[int], growth: Growth, block_ids: list[int]) -> None:
        num_delivered, num_null, num_moved, _ = self._plan(len(table), growth)
        table += block_ids[:num_delivered]
        first = len(table) - self.num_scratch
        table += [NULL_BLOCK_ID] * num_null
        table += table[first : first + num_moved]
        table[first : first + num_moved] = [NULL_BLOCK_ID] * num_moved
        table += block_ids[num_delivered:]

    def _plan(self, length: int, growth: Growth) -> tuple[int, int, int, int]:
        """Return how many blocks take a delivered state, become null, are moved; and the table's new length."""
        num_states = -(-growth.num_tokens // self.block_size)
        num_delivered = max(0, -(-growth.num_delivered // self.block_size) - length)
        num_blocks = num_states + self.num_scratch
        length += num_delivered
        if num_blocks <= length:
            return num_delivered, 0, 0, length
        num_null = max(0, num_states - 1 - length)
        first_scratch = length if growth.is_new else length - self.num_scratch
        num_moved = min(length - first_scratch, max(0, num_states - 1 - first_scratch))
        return num_delivered, num_null, num_moved, num_blocks


def chunk_end(block_size: int, start: int, end: int, *, prefill_end: int, last_state: int) -> int:
    """Return where a chunk of `start … end - 1` should end, so that its state can be shared.

    Args:
        block_size: distance of places where hits can end.
        prefill_end: where the known tokens end; after it any chunk is as good.
        last_state: last place in the sequence where a repetition of it could go on.

    >>> [chunk_end(4, start, start + 9, prefill_end=18, last_state=16) for start in (0, 6, 8, 16, 18)]
    [8, 8, 16, 25, 27]
    """
    if start >= prefill_end:
        return end
    if end < prefill_end and end // block_size * block_size > start:
        end = end // block_size * block_size
    next_boundary = (start // block_size + 1) * block_size
    stops = (next_boundary if start % block_size else 0, last_state)
    return min((stop for stop in stops if start < stop < end), default=end)
