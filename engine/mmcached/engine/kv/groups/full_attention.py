"""Full attention: a hit is a cached prefix without gaps; no block is freed before the request ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

from mmcached.engine.kv.groups.group import NEVER, CachedPrefix, Run


class FullAttention:
    """`GroupKind` of full attention; a hit leaves out the last `num_recomputed` cached blocks."""

    is_downward_closed = True
    has_state = False

    def __init__(self, block_size: int, *, num_recomputed: int = 0) -> None:
        self.block_size = block_size
        self.num_recomputed = num_recomputed

    def longest_hit(self, cached: CachedPrefix, max_blocks: int) -> list[int]:
        found = cached.leading(max_blocks)
        return found[: -self.num_recomputed] if self.num_recomputed else found

    def runs_for_hits(self, start: int, stop: int) -> Iterable[Run]:
        return ((start, stop),)

    def num_left_behind(self, num_computed_tokens: int) -> int:
        return 0

    def releases_at(self, num_left_behind: int) -> int:
        return NEVER

    def most_blocks_held(self, num_tokens: int, most_new_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def num_common_prefix_blocks(self, table: Sequence[int], is_shared_by_all: Callable[[int], bool]) -> int:
        return sum(1 for _ in takewhile(is_shared_by_all, table))
