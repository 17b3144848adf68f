"""Sliding-window attention: a token attends to the last `window` tokens, itself included; older blocks are freed.

The next token attends to `window - 1` earlier tokens, so a hit needs only the blocks of these.

    window 5, block size 2      next token x attends to the four before it
    | null | null |  3  |  4  | x …

Next to larger blocks:

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

from mmcached.engine.kv.groups.windowed import WindowedKind


class SlidingWindow(WindowedKind):
    """Sliding-window attention over `window` tokens."""

    def __init__(self, block_size: int, window: int, *, stride: int = 1, num_recomputed: int = 0) -> None:
        num_needed = -(-(window - 1) // block_size)
        if not num_needed + num_recomputed:
            num_needed = 1  # no token attends to it, but a hit must prove that its tokens were computed
        super().__init__(block_size, num_needed, stride=stride, num_recomputed=num_recomputed)
        self._window = window

    def num_left_behind(self, num_computed_tokens: int) -> int:
        return max(0, num_computed_tokens - self._window + 1) // self.block_size

    def releases_at(self, num_left_behind: int) -> int:
        return (num_left_behind + 1) * self.block_size + self._window - 1

    def most_blocks_held(self, num_tokens: int, most_new_tokens: int) -> int:
        in_window = -(-(self._window - 1 + most_new_tokens) // self.block_size) + 1  # the window need not be aligned
        return min(in_window, -(-num_tokens // self.block_size))
