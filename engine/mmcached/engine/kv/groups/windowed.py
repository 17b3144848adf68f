"""Base of sliding windows, chunks and states: later tokens need only the blocks from some position on.

A hit of L tokens needs the blocks that a request which has computed L tokens still holds; null blocks stand before
them. Next to groups with larger blocks, a hit ends only at every `stride`-th block. Blocks that no such hit needs are
not published.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count

from mmcached.engine.kv.groups.group import CachedPrefix, Run
from mmcached.engine.kv.pool.block_pool import NULL_BLOCK_ID


class WindowedKind(ABC):
    """`GroupKind` whose hits end at every `stride`-th block, and need the `num_recomputed` blocks after it, too.

    Attributes:
        num_needed: blocks that a hit needs, if it is not shorter.
    """

    is_downward_closed = False
    has_state = False

    def __init__(self, block_size: int, num_needed: int, *, stride: int, num_recomputed: int) -> None:
        self.block_size = block_size
        self.num_needed = num_needed
        self.num_recomputed = num_recomputed
        self._stride = stride

    @abstractmethod
    def num_left_behind(self, num_computed_tokens: int) -> int: ...

    @abstractmethod
    def releases_at(self, num_left_behind: int) -> int: ...

    @abstractmethod
    def most_blocks_held(self, num_tokens: int, most_new_tokens: int) -> int: ...

    def first_needed(self, num_blocks: int) -> int:
        """Return the position of the first block that a hit of `num_blocks` blocks needs."""
        return max(0, num_blocks - self.num_needed)

    def longest_hit(self, cached: CachedPrefix, max_blocks: int) -> list[int]:
        stride, end = self._stride, max_blocks
        while (length := (end - self.num_recomputed) // stride * stride) > 0:
            start = self.first_needed(length)
            found: list[int] = []
            for index in range(start, length + self.num_recomputed):
                block_id = cached.at(index)
                if block_id is None:
                    end = index  # every run that ends after this position has the same gap
                    break
                found.append(block_id)
            else:
                return [NULL_BLOCK_ID] * start + found[: length - start]
        return []

    def runs_for_hits(self, start: int, stop: int) -> Iterable[Run]:
        return ((start, stop),) if self.num_needed >= self._stride else self._runs_before_ends(start, stop)

    def _runs_before_ends(self, start: int, stop: int) -> Iterator[Run]:
        first_end = max(1, (start - self.num_recomputed) // self._stride + 1) * self._stride
        for end in count(first_end, self._stride):
            first, last = max(start, self.first_needed(end)), min(stop, end + self.num_recomputed)
            if first >= stop:
                return
            yield first, last

    def num_common_prefix_blocks(self, table: Sequence[int], is_shared_by_all: Callable[[int], bool]) -> int:
        return 0  # requests of different lengths have freed different heads
