"""Block tables of one request, by group, and the request's horizon.

    tables          | null | null |  7 |  9 | 12 |  3 |
                      left behind   published  |   |
                                    or reserved    capacity: tokens that have slots

The horizon is the largest number of tokens, scheduled ones included, up to which the tables need no change: all tokens
have slots, no block becomes full, no window moves. Most decode steps stay below it.

Invariant: tables only grow; entries left behind by a window become null in place.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from mmcached.engine.kv.groups.group import NEVER
from mmcached.engine.steps.request import RequestId

UNLIMITED = NEVER


class RequestBlocks:
    """Block tables of one request.

    Attributes:
        num_published: by group, leading blocks that are published or reserved, null blocks included.
        num_left_behind: leading null blocks by group.
        capacity: tokens that have slots in every group; `UNLIMITED` if more are never requested.
        next_full: number of final tokens at which the next block can be published; `UNLIMITED` if nothing is published.
        next_release: number of computed tokens at which the next window moves; `UNLIMITED` without windows.
        horizon: number of tokens, see above; -1 forces a check.
        in_step: number of the last step in which the request was given slots, see `Steps`.
        can_publish: False if caching is off, or if an epoch began while the request held blocks.
        is_lost: whether content that it relies on was withdrawn before it was computed, or removed; it can then only be
            freed.
    """

    __slots__ = (
        "can_publish",
        "capacity",
        "horizon",
        "in_step",
        "is_lost",
        "next_full",
        "next_release",
        "num_left_behind",
        "num_published",
        "request_id",
        "tables",
    )

    def __init__(self, request_id: RequestId, hit: Sequence[Sequence[int]], *, next_full: int) -> None:
        self.request_id = request_id
        self.tables = [list(ids) for ids in hit]
        self.num_published = list(map(len, hit))
        self.num_left_behind = [0] * len(hit)
        self.capacity = self.next_release = self.in_step = 0
        self.next_full = next_full
        self.horizon = -1
        self.can_publish = next_full < UNLIMITED
        self.is_lost = False

    def extend(self, num_missing: Sequence[int], block_ids: list[int]) -> tuple[list[int], ...]:
        """Append new blocks to the tables, in order of group, and return them by group."""
        if len(num_missing) == 1:
            self.tables[0] += block_ids
            return (block_ids,)
        parts, start = [], 0
        for table, num in zip(self.tables, num_missing, strict=True):
            parts.append(block_ids[start : start + num])
            table.extend(parts[-1])
            start += num
        return tuple(parts)

    def set_horizon(self) -> None:
        """Recompute the horizon after one of its three limits has changed."""
        horizon = self.next_full - 1
        if self.capacity < horizon:  # noqa: PLR1730 (a comparison takes a fifth of the time of `min`)
            horizon = self.capacity
        if self.next_release < horizon:  # noqa: PLR1730
            horizon = self.next_release
        self.horizon = horizon

    def forget_horizon(self) -> None:
        """Force a full check at the request's next allocation."""
        self.next_full = 0 if self.can_publish else UNLIMITED
        self.horizon = -1

    def first_gone(self, block_sizes: Sequence[int], gone: Set[int]) -> int | None:
        """Return the first token of the first block in `gone`; None if the request holds none of them."""
        starts = (
            position * size
            for table, size in zip(self.tables, block_sizes, strict=True)
            for position, block_id in enumerate(table)
            if block_id in gone
        )
        return min(starts, default=None)

    def cut_published(self, block_sizes: Sequence[int], start: int) -> list[int]:
        """Mark content from token `start` on as not final; return the blocks from there on."""
        for index, size in enumerate(block_sizes):
            self.num_published[index] = min(self.num_published[index], start // size)
        self.forget_horizon()
        pairs = zip(self.tables, block_sizes, strict=True)
        return [block_id for table, size in pairs for block_id in table[start // size :]]

    def num_slots(self, block_sizes: Sequence[int]) -> list[int]:
        return [len(table) * size for table, size in zip(self.tables, block_sizes, strict=True)]

    def take_all(self) -> list[list[int]]:
        """Return and clear all blocks, each table in reverse, because the tail is freed before the head."""
        taken = [table[::-1] for table in self.tables]
        self.tables = []
        return taken


def num_missing(block_sizes: Sequence[int], tables: Sequence[Sequence[int]], num_slots: int) -> list[int]:
    if len(tables) == 1:
        return [max(0, -(-num_slots // block_sizes[0]) - len(tables[0]))]
    return [max(0, -(-num_slots // size) - len(table)) for size, table in zip(block_sizes, tables, strict=True)]
