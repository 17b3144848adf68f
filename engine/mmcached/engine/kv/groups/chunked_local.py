"""Chunked local attention: a token attends to the earlier tokens of its chunk; the blocks of earlier chunks are freed.

    chunk 8, block size 4       tokens 8 to 15 are one chunk
    | null | null |  3  | x …

A hit that ends where a chunk begins needs no block at all: nothing computed later depends on these layers' earlier
tokens.

>>> class Cached(list):
...     at = list.__getitem__
>>> kind = ChunkedLocal(4, 8)
>>> kind.longest_hit(Cached([None, None, 3]), 3), kind.longest_hit(Cached([None, None, None]), 3)
([0, 0, 3], [0, 0])
>>> kind.num_left_behind(15), kind.num_left_behind(16), kind.releases_at(0), kind.releases_at(2)
(2, 4, 8, 16)

Source: vLLM's ChunkedLocalAttentionManager, which is restricted to chunks of whole blocks of one size.
"""

from __future__ import annotations

from collections.abc import Iterable

from mmcached.engine.kv.groups.group import Run
from mmcached.engine.kv.groups.windowed import WindowedKind


class ChunkedLocal(WindowedKind):
    """Chunked local attention, with chunks of `chunk` tokens. All full blocks are published."""

    def __init__(self, block_size: int, chunk: int, *, stride: int = 1, num_recomputed: int = 0) -> None:
        super().__init__(block_size, -(-chunk // block_size), stride=stride, num_recomputed=num_recomputed)
        self._chunk = chunk

    def first_needed(self, num_blocks: int) -> int:
        return self.num_left_behind(num_blocks * self.block_size)

    def runs_for_hits(self, start: int, stop: int) -> Iterable[Run]:
        return ((start, stop),)

    def num_left_behind(self, num_computed_tokens: int) -> int:
        return num_computed_tokens // self._chunk * self._chunk // self.block_size

    def releases_at(self, num_left_behind: int) -> int:
        return -(-(num_left_behind + 1) * self.block_size // self._chunk) * self._chunk

    def most_blocks_held(self, num_tokens: int, most_new_tokens: int) -> int:
        first_may_be_cut = self._chunk % self.block_size > 0
        in_chunk = -(-(self._chunk + most_new_tokens) // self.block_size) + first_may_be_cut
        return min(in_chunk, -(-num_tokens // self.block_size))
