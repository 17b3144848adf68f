"""Makes content findable: at once, or when the step that computes it is committed.

    full blocks of a request ──┬── no step ──────────────────────────────> published
                               └── in a step ──> reserved ──commit──> published
                                                    └──withdraw──> as before

Knows nothing of free blocks or of who is admitted. Invariant: each block of a request is published once at most, and
only below what the request's `num_published` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmcached.engine.kv.events import PublishedLog
from mmcached.engine.kv.groups import Group
from mmcached.engine.kv.pool.block_pool import BlockPool
from mmcached.engine.kv.request_blocks import UNLIMITED, RequestBlocks
from mmcached.engine.kv.steps import Reservation, Run, Steps
from mmcached.engine.steps.request import Request


class Publisher:
    """The way from full blocks to published ones.

    Args:
        hash_block_size: tokens under one block hash.
        log: notes content that becomes findable; None costs nothing.
    """

    def __init__(
        self, pool: BlockPool, steps: Steps, groups: Sequence[Group], hash_block_size: int, log: PublishedLog | None
    ) -> None:
        self._pool = pool
        self._steps = steps
        self._groups = groups
        self._hash_block_size = hash_block_size
        self._log = log

    def publish(
        self,
        request: Request,
        held: RequestBlocks,
        block_hashes: list[bytes],
        num_tokens: int,
        *,
        most_tokens: int,
        at_once: bool = False,
    ) -> None:
        """Publish a request's blocks that are full with so many final tokens, or reserve them in the open step.

        Left out are blocks that no hit can need, and for the time being those that only longer hits can.

        Args:
            most_tokens: most tokens that may have been computed at the next call, guesses included. A hit within
                these finds its blocks now, because a window may have moved on by then.
            at_once: the blocks have been computed, so that an open step does not matter.
        """
        if not held.can_publish:
            held.next_full = UNLIMITED
            return
        hash_block_size = self._hash_block_size
        num_hashed = min(num_tokens // hash_block_size, len(block_hashes))
        held.next_full = (num_hashed + 1) * hash_block_size
        runs: list[Run] = []
        block_ids: list[int] = []
        keys: Sequence[bytes] = []
        for index, group in enumerate(self._groups):
            start, stop = max(held.num_published[index], held.num_left_behind[index]), num_hashed // group.ratio
            if group.stride > 1:
                stop = min(stop, group.num_for_hits_within(most_tokens))
            if start >= stop:
                continue
            held.num_published[index] = stop
            for first, last in group.kind.runs_for_hits(start, stop):
                found, names = held.tables[index][first:last], group.keys(block_hashes, first, last)
                block_ids, keys = (block_ids + found, [*keys, *names]) if runs else (found, names)
                runs.append((index, first, last))
        if not runs:
            return
        if at_once or not self._steps.is_open:
            self._publish(request, runs, block_ids, keys)
        else:
            self._steps.reserve(Reservation(request, held, runs, block_ids, keys))

    def commit(self, step_id: int) -> None:
        """Publish what the step reserved, and free what was given back meanwhile.

        Raises:
            LocalProtocolError: this step is not open.
        """
        ended = self._steps.end(step_id)
        for each in ended.reservations:
            if each.keys:
                self._publish(each.request, each.runs, each.block_ids, each.keys)
        for block_ids in ended.fenced:
            self._pool.free_blocks(block_ids)

    def withdraw(self, step_id: int) -> list[RequestBlocks]:
        """Publish nothing of the step, and free what was given back meanwhile.

        Returns:
            The requests that rely on what is not going to be computed; they are lost.

        Raises:
            LocalProtocolError: this step is not open.
        """
        ended = self._steps.end(step_id)
        for each in ended.reservations:
            for index, start, _ in each.runs:
                each.held.num_published[index] = min(each.held.num_published[index], start)
            each.held.forget_horizon()
        for held in ended.lost:
            held.is_lost = True
            held.forget_horizon()
        for block_ids in ended.fenced:
            self._pool.free_blocks(block_ids)
        return ended.lost

    def _publish(self, request: Request, runs: list[Run], block_ids: list[int], keys: Sequence[bytes]) -> None:
        copies = self._pool.publish(block_ids, keys)
        if self._log is None:
            return
        # The content of a copy could be found before: it is no news.
        offset = 0
        for group_index, first, last in runs:
            for start, stop in _spans_between(copies, offset, offset + last - first):
                self._log.stored(request, group_index, first + start - offset, keys[start:stop])
            offset += last - first


def _spans_between(gaps: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield what is left of a range without some of its numbers, which are sorted.

    >>> list(_spans_between([2, 5, 6, 9], 4, 9))
    [(4, 5), (7, 9)]
    """
    for gap in gaps:
        if start <= gap < stop:
            if gap > start:
                yield start, gap
            start = gap + 1
    if stop > start:
        yield start, stop
