"""Sliding-window attention: a token attends to the last `window` tokens, itself included; older blocks are freed.

The next token attends to `window - 1` earlier tokens, so a hit needs only the blocks of these; null blocks stand before
them. A hit shorter than the window needs all its blocks.

    window 5, block size 2      next token x attends to the four before it
    | null | null |  3  |  4  | x …

Next to groups with larger blocks, a hit ends only at every `stride`-th block. Blocks that no such hit needs are not
published.

    stride 8      0 1 2 3 4 5[6 7]8 …  13[14 15]16 …

>>> class Cached(list):
...     at = list.__getitem__
>>> SlidingWindow(2, 5).longest_hit(Cached([None, 7, 3, 4, None]), 5)
[0, 0, 3, 4]
>>> SlidingWindow(2, 5).num_left_behind(7)          # token 7 attends to tokens 3 to 7, the first of them in block 1
1
>>> list(SlidingWindow(2, 5, stride=8).runs_for_hits(0, 23))
[(6, 8), (14, 16), (22, 23)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count

from mmcached.engine.kv.groups.group import CachedPrefix, Run
from mmcached.engine.kv.pool.block_pool import NULL_BLOCK_ID


class SlidingWindow:
    """`GroupKind` of sliding-window attention over `window` tokens.

    Hits end at every `stride`-th block, and need the `num_recomputed` blocks after their end, too.
    """

    is_downward_closed = False

    def __init__(self, block_size: int, window: int, *, stride: int = 1, num_recomputed: int = 0) -> None:
        self.block_size = block_size
        self._window = window
        self._stride = stride
        self._num_recomputed = num_recomputed
        self._num_needed = -(-(window - 1) // block_size)
        if not self._num_needed + num_recomputed:
            self._num_needed = 1  # no token attends to it, but a hit must prove that its tokens were computed

    def longest_hit(self, cached: CachedPrefix, max_blocks: int) -> list[int]:
        stride, end = self._stride, max_blocks
        while (length := (end - self._num_recomputed) // stride * stride) > 0:
            start = max(0, length - self._num_needed)
            found: list[int] = []
            for index in range(start, length + self._num_recomputed):
                block_id = cached.at(index)
                if block_id is None:
                    end = index  # every run that ends after this position has the same gap
                    break
                found.append(block_id)
            else:
                return [NULL_BLOCK_ID] * start + found[: length - start]
        return []

    def runs_for_hits(self, start: int, stop: int) -> Iterable[Run]:
        return ((start, stop),) if self._num_needed >= self._stride else self._runs_before_ends(start, stop)

    def _runs_before_ends(self, start: int, stop: int) -> Iterator[Run]:
        first_end = max(1, (start - self._num_recomputed) // self._stride + 1) * self._stride
        for end in count(first_end, self._stride):
            first, last = max(start, end - self._num_needed), min(stop, end + self._num_recomputed)
            if first >= stop:
                return
            yield first, last

    def num_left_behind(self, num_computed_tokens: int) -> int:
        return max(0, num_computed_tokens - self._window + 1) // self.block_size

    def releases_at(self, num_left_behind: int) -> int:
        return (num_left_behind + 1) * self.block_size + self._window - 1

    def most_blocks_held(self, num_tokens: int, most_new_tokens: int) -> int:
        in_window = -(-(self._window - 1 + most_new_tokens) // self.block_size) + 1  # the window need not be aligned
        return min(in_window, -(-num_tokens // self.block_size))

    def num_common_prefix_blocks(self, table: Sequence[int], is_shared_by_all: Callable[[int], bool]) -> int:
        return 0  # requests of different lengths have freed different heads
