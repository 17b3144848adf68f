"""Making content findable: at once, or when the step that computes it is committed.

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
from mmcached.engine.kv.hashing.block_hash import BlockHasher
from mmcached.engine.kv.pool.block_pool import BlockPool
from mmcached.engine.kv.request_blocks import UNLIMITED, RequestBlocks
from mmcached.engine.kv.steps import Reservation, Run, Steps
from mmcached.engine.steps.request import Request


class Publisher:
    """Digests of requests, and the way from full blocks to published ones.

    Args:
        hash_block_size: tokens under one digest.
        num_lookahead_tokens: tokens behind a block that its digest covers too.
        log: is told what is findable now that was not before; None if nobody wants to know.

    Attributes:
        req_to_block_hashes: digests by request id, until `forget_digests`.
        num_publications: grows whenever something is published or reserved.
    """

    def __init__(
        self,
        pool: BlockPool,
        steps: Steps,
        groups: Sequence[Group],
        hasher: BlockHasher,
        *,
        hash_block_size: int,
        num_lookahead_tokens: int,
        log: PublishedLog | None,
    ) -> None:
        self.req_to_block_hashes: dict[int, list[bytes]] = {}
        self.num_publications = 0
        self._pool = pool
        self._steps = steps
        self._groups = groups
        self._hasher = hasher
        self._hash_block_size = hash_block_size
        self._num_lookahead = num_lookahead_tokens
        self._log = log

    def digests(self, request: Request) -> list[bytes]:
        """Return the digests of all blocks of a request that are full, as far as its tokens are known.

        Raises:
            InvalidRequest: a token id in one of them is a placeholder.
        """
        digests = request.block_hashes
        if (request.num_tokens - self._num_lookahead) // self._hash_block_size > len(digests):
            self._hasher.extend_block_hashes(request, self._hash_block_size, self._num_lookahead)
        self.req_to_block_hashes[request.request_id] = digests
        return digests

    def forget_digests(self, request: Request) -> None:
        """Forget the digests of a request that has ended; they would be made anew."""
        self.req_to_block_hashes.pop(request.request_id, None)
        request.block_hashes = []

    def publish(
        self,
        request: Request,
        held: RequestBlocks,
        digests: list[bytes],
        num_tokens: int,
        *,
        most_tokens: int,
        at_once: bool = False,
    ) -> None:
        """Publish a request's blocks that are full with so many final tokens, or reserve them in the newest step.

        Left out are blocks that no hit can need, and for the time being those that only longer hits can.

        Args:
            digests: of the request, so far.
            most_tokens: so many may have been computed when it is asked about again, guesses included. A hit within
                these finds its blocks now, because a window may have moved on by then.
            at_once: they have been computed; a step does not matter.
        """
        if not held.can_publish:
            held.next_full = UNLIMITED
            return
        hash_block_size = self._hash_block_size
        num_hashed = min(num_tokens // hash_block_size, len(digests))
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
                found, names = held.tables[index][first:last], group.keys(digests, first, last)
                block_ids, keys = (block_ids + found, [*keys, *names]) if runs else (found, names)
                runs.append((index, first, last))
        if not runs:
            return
        self.num_publications += 1
        if at_once or self._steps.newest is None:
            self._publish(request, runs, block_ids, keys)
        else:
            self._steps.reserve(self._steps.newest, Reservation(request, held, runs, block_ids, keys))

    def commit(self, step_id: int) -> None:
        """The oldest step was computed: publish what it reserved, free what was given back meanwhile.

        Raises:
            LocalProtocolError: it is not the oldest.
        """
        step = self._steps.end_oldest(step_id)
        for each in step.reservations:
            if each.keys:
                self._publish(each.request, each.runs, each.block_ids, each.keys)
        for _, block_ids in step.fenced:  # older steps have ended, so nobody else can use these
            self._pool.free_blocks(block_ids)

    def withdraw(self, step_id: int) -> list[RequestBlocks]:
        """This step and all later ones were not computed: publish nothing of them.

        Returns:
            Those who took over what is not going to be computed: they are lost.

        Raises:
            LocalProtocolError: it has ended, or was never begun.
        """
        ended, lost = self._steps.end_from(step_id)
        for step in ended:
            for each in step.reservations:
                for index, start, _ in each.runs:
                    each.held.num_published[index] = min(each.held.num_published[index], start)
                each.held.forget_horizon()
        for borrower in lost:
            borrower.is_lost = True
            borrower.forget_horizon()
        for step in ended:
            for held, block_ids in step.fenced:
                self._steps.give_back(self._pool, held, block_ids)
        return lost

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
