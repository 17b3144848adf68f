"""Every token looks at the last `window` tokens, itself among them: blocks behind the window are given back.

The next token looks at `window - 1` earlier ones. A hit needs only the blocks that these lie in; null blocks stand for
all before them. A hit that is shorter than the window needs all its blocks.

    window 5, block size 2      next token x looks at the four before it
    | null | null |  3  |  4  | x …

>>> class Cached(list):
...     at = list.__getitem__
>>> SlidingWindow(2, 5).longest_hit(Cached([None, 7, 3, 4, None]), 5, 0)
[0, 0, 3, 4]
>>> SlidingWindow(2, 5).num_left_behind(7)          # token 7 looks at tokens 3 to 7, the first of them in block 1
1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mmcached.engine.kv.block_pool import NULL_BLOCK_ID
from mmcached.engine.kv.groups.group import CachedPrefix


class SlidingWindow:
    """`GroupKind` for blocks of `block_size` tokens and windows of `window` tokens."""

    is_downward_closed = False

    def __init__(self, block_size: int, window: int) -> None:
        self.block_size = block_size
        self._window = window
        self._num_needed = -(-(window - 1) // block_size)

    def longest_hit(self, cached: CachedPrefix, max_blocks: int, num_recomputed: int) -> list[int]:
        num_needed = self._num_needed + num_recomputed
        end = max_blocks
        while end > 0:
            start = max(0, end - num_needed)
            found: list[int] = []
            for index in range(start, end):
                block_id = cached.at(index)
                if block_id is None:
                    end = index  # each run that ends between here and `end` has this gap too
                    break
                found.append(block_id)
            else:
                return ([NULL_BLOCK_ID] * start + found)[: max(0, end - num_recomputed)]
        return []

    def num_left_behind(self, num_computed_tokens: int) -> int:
        return max(0, num_computed_tokens - self._window + 1) // self.block_size

    def releases_at(self, num_left_behind: int) -> int:
        return (num_left_behind + 1) * self.block_size + self._window - 1

    def most_blocks_held(self, num_tokens: int, most_new_tokens: int) -> int:
        in_window = -(-(self._window - 1 + most_new_tokens) // self.block_size) + 1  # neither end need be aligned
        return min(in_window, -(-num_tokens // self.block_size))

    def num_common_prefix_blocks(self, table: Sequence[int], is_shared_by_all: Callable[[int], bool]) -> int:
        return 0  # requests of different lengths have given back different heads
