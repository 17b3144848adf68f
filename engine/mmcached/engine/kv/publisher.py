"""Publishes full blocks in the prefix cache: at once, or when the step that computes them is committed.

Within a step full blocks are reserved; `commit` publishes them, `withdraw` drops the reservation. Invariant: each block
of a request is published at most once, and only at positions below `num_published`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mmcached.engine.kv.events import PublishedLog
from mmcached.engine.kv.groups import Group
from mmcached.engine.kv.pool.block_pool import NULL_BLOCK_ID, BlockPool
from mmcached.engine.kv.request_blocks import UNLIMITED, RequestBlocks
from mmcached.engine.kv.steps import Reservation, Run, Steps
from mmcached.engine.steps.request import Request


class Publisher:
    """Publishes full blocks or reserves them in the open step; `log` is None if events are off."""

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
        """Publish the blocks of a request that `num_tokens` final tokens fill, or reserve them in the open step.

        Skips blocks that no hit can need, and for now blocks that only longer hits can need. `at_once` ignores an open
        step: the blocks have been computed.

        Args:
            most_tokens: upper bound of the tokens computed at the next call, draft tokens included. Blocks of hits
                within it are published now, because a window may have moved past them by then.
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
            runs_for_hits = group.kind.runs_for_hits(start, stop)
            if group.kind.has_state:
                runs_for_hits = _without_null(held.tables[index], runs_for_hits)
            for first, last in runs_for_hits:
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
        """Publish the step's reservations and free its fenced blocks; raises `LocalProtocolError` if it is not open."""
        ended = self._steps.end(step_id)
        for each in ended.reservations:
            if each.keys:
                self._publish(each.request, each.runs, each.block_ids, each.keys)
        for block_ids in ended.fenced:
            self._pool.free_blocks(block_ids)

    def withdraw(self, step_id: int, overwritten: Sequence[RequestBlocks] = ()) -> list[RequestBlocks]:
        """Drop the step's reservations and free its fenced blocks; raises `LocalProtocolError` if it is not open.

        Args:
            overwritten: requests whose states the step may have overwritten.

        Returns:
            These, and the requests that rely on blocks the step would have computed; they are marked `is_lost`.
        """
        ended = self._steps.end(step_id)
        lost = list(dict.fromkeys([*ended.lost, *overwritten]))
        for each in ended.reservations:
            for index, start, _ in each.runs:
                each.held.num_published[index] = min(each.held.num_published[index], start)
            each.held.forget_horizon()
        for held in lost:
            held.is_lost = True
            held.forget_horizon()
        for block_ids in ended.fenced:
            self._pool.free_blocks(block_ids)
        return lost

    def _publish(self, request: Request, runs: list[Run], block_ids: list[int], keys: Sequence[bytes]) -> None:
        copies = self._pool.publish(block_ids, keys)
        if self._log is None:
            return
        # A copy's content could already be found, so it makes no event.
        offset = 0
        for group_index, first, last in runs:
            for start, stop in _spans_between(copies, offset, offset + last - first):
                self._log.stored(request, group_index, first + start - offset, keys[start:stop])
            offset += last - first


def _without_null(table: Sequence[int], runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the parts of runs that are not null: a state that was not written has a null block.

    >>> list(_without_null([0, 5, 0, 6, 7], [(0, 3), (3, 5)]))
    [(1, 2), (3, 5)]
    """
    for first, last in runs:
        part = table[first:last]
        if NULL_BLOCK_ID not in part:
            yield first, last
        else:
            yield from ((position, position + 1) for position, block_id in enumerate(part, first) if block_id)


def _spans_between(gaps: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of `range(start, stop)` between the sorted `gaps`.

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
