"""The tensor prefix index knows the hidden states of prefixes that rank 0 keeps, and so how far a KV hit may be used.

A KV hit spares computing tokens, and with it the rows that other stages want of them. It is of use only as far as these
rows are in the store:

    KV hit          |-------------------------------|
    hidden_states   |-------------------|                   usable for hidden_states:     20
    codes           |-----------|       |------|                       for both keys:     12
    positions       0          12      20             a gap ends it, and a tail without its head is none

Rows are found under the hashes of the request's blocks (`Request.block_hashes`), and by how many rows the block has
from its beginning on. `reserve -> commit -> publish`, as in the KV cache manager: a chunk that is scheduled reserves
its rows, and chunks that are scheduled later in the step may count on them, since a worker writes before it reads. When
the step is committed, the report of the worker decides what is listed, whatever was reserved; what the worker has
evicted is in its report too.

    begin_step ── usable_prefix, reserve, take_released ── commit(report) | withdraw         one step at a time

Knows nothing of KV blocks, budgets or tensors. Invariants: listed is what a worker has reported, in this epoch, and
nothing that has been reported gone since; a worker that executes the plans as they come knows the hashes of a tracked
request's blocks without a gap.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import itemgetter

from mmcached.engine.hidden_states.listed_rows import ListedRows, Report
from mmcached.engine.steps.request import Request
from mmcached.engine.steps.step_log import StepLog
from mmcached.wire.errors import ConfigError, InvariantError, LocalProtocolError


@dataclass(frozen=True, slots=True)
class BlockNames:
    """What a worker must be told with a chunk: the hashes of the request's blocks from number `first_block` on."""

    first_block: int
    digests: Sequence[bytes]


NOTHING_TO_TELL = BlockNames(0, ())


@dataclass(frozen=True, slots=True)
class PrefixIndexStats:
    """Gauges, but for the last two.

    Attributes:
        blocks: listed.
        reserved: blocks that the open step is going to write to, once for each chunk.
        requests: tracked.
        hit_rows: rows of one key behind first chunks that wanted them.
        dropped: listed blocks, for want of room.
    """

    blocks: int
    reserved: int
    requests: int
    hit_rows: int
    dropped: int


class TrackedRequest:
    """A request that rank 0 holds rows for, from its first chunk until it is released.

    Attributes:
        num_named: blocks whose hashes the worker has been told.
        is_old: it began in a former epoch, so what it computes is not what its hashes name.
    """

    __slots__ = ("_end", "_start", "is_old", "num_named")

    def __init__(self) -> None:
        self.is_old = False
        self.set_named(0, 0)

    def set_named(self, num_blocks: int, block_size: int) -> None:
        """Note that the worker is told the hashes of so many blocks."""
        self.num_named = num_blocks
        self._start = num_blocks * block_size
        self._end = self._start + block_size

    def is_in_open_block(self, start: int, end: int, num_hashes: int) -> bool:
        """Return whether a chunk lies in one block that has no hash and gets none by it: there is nothing to tell."""
        return self._start <= start and end < self._end and num_hashes <= self.num_named


class TensorPrefixIndex:
    """The engine's view of the rows that rank 0 keeps.

    Args:
        block_size: tokens under one hash.
        max_blocks: blocks that are listed; as many as the store can keep, else some of what it keeps is not found.

    Attributes:
        epoch: number of calls of `new_epoch`.
        listed: rows that have been reported; only changed here.

    Raises:
        ConfigError: a size below 1.
    """

    def __init__(self, block_size: int, *, max_blocks: int) -> None:
        for field, value in (("block_size", block_size), ("max_blocks", max_blocks)):
            if value < 1:
                raise ConfigError(field, value, "at least 1")
        self.block_size = block_size
        self.epoch = 0
        self.listed = ListedRows(block_size, max_blocks)
        self._no_speculative_hits: set[int] = set()  # requests that count on listed rows only
        self._hit_rows = 0
        self.reset()

    # ---- scheduling

    def usable_prefix(self, request: Request, num_kv_hit_tokens: int, keys: Collection[str]) -> int:
        """Return the longest usable prefix of a KV hit: the leading tokens for which every key has rows.

        The rows are there when the request's first chunk is run. It may be any number, also within a block: whoever
        can only go on at a block's beginning rounds it down and computes the rest. Changes nothing.

        Args:
            request: looked up in the KV cache, so its block hashes are known as far as the hit goes.
            keys: tensors of which rows are wanted; none: the whole hit can be used.
        """
        num_usable = num_kv_hit_tokens
        for key in keys:
            num_usable = self._num_rows(request, num_usable, key)
        return num_usable

    def reserve(
        self,
        request: Request,
        start: int,
        num_tokens: int,
        *,
        written: Collection[str],
        needed: Collection[str] = (),
    ) -> BlockNames:
        """Note that the open step computes tokens `[start, start + num_tokens)`; after `allocate_slots`.

        Args:
            written: keys of which the model gives rows.
            needed: keys whose rows before `start` this request wants from the store; for its first chunk.

        Returns:
            What the plan tells the worker with this chunk.

        Raises:
            LocalProtocolError: no step is open.
        """
        if not self._step.is_open:
            raise LocalProtocolError(f"request {request.request_id}: rows reserved between two steps; begin one first")
        end, hashes = start + num_tokens, request.block_hashes
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            tracked = self._tracked[request.request_id] = TrackedRequest()
            self._hit_rows += start * len(needed)
        elif tracked.is_in_open_block(start, end, len(hashes)):
            return NOTHING_TO_TELL  # most of the time, of a request that decodes
        self._taking_part.add(request.request_id)
        if tracked.is_old:
            return NOTHING_TO_TELL
        for index in range(start // self.block_size, min(-(-end // self.block_size), len(hashes)) if written else 0):
            origin = index * self.block_size
            rows = max(start - origin, 0), min(end - origin, self.block_size), written
            insort(self._reserved.setdefault(hashes[index], []), rows, key=itemgetter(0))
        names = BlockNames(tracked.num_named, hashes[tracked.num_named : -(-end // self.block_size)])
        tracked.set_named(tracked.num_named + len(names.digests), self.block_size)
        return names

    def release(self, request: Request) -> None:
        """Note that the worker need not hold a request's rows: it has ended, or starts over. Untracked: no change.

        Raises:
            LocalProtocolError: it takes part in the open step, and later chunks may count on what it writes.
        """
        if request.request_id in self._taking_part:
            raise LocalProtocolError(f"request {request.request_id} takes part in the open step")
        self._untrack(request.request_id)
        if request.is_finished:
            self._no_speculative_hits.discard(request.request_id)

    def take_released(self) -> list[int]:
        """Return and clear the requests that the plan of the open step must name as released, before its chunks.

        Raises:
            LocalProtocolError: no step is open.
        """
        if not self._step.is_open:
            raise LocalProtocolError("released requests are told with a step; begin one first")
        return self._step.take()

    def note_missing(self, request: Request, key: str, first: int) -> None:
        """Note that a hit of this request has been found to lack rows of `key` from position `first` on.

        What is listed there is cut, in case a report was lost; and this request, until it ends, counts on nothing any
        more that is only reserved. So it gets on: what is listed was written, and the rest it computes.
        """
        index, num_rows = divmod(first, self.block_size)
        if index < len(request.block_hashes):
            self.listed.cut(request.block_hashes[index], key, num_rows)
        self._no_speculative_hits.add(request.request_id)

    # ---- steps and epochs

    def begin_step(self, step_id: int) -> None:
        """Open a step. Raises `LocalProtocolError` if another one is open."""
        self._step.begin(step_id)

    def commit(self, step_id: int, report: Report) -> None:
        """End a step that was computed: list what rank 0 reports, and nothing else of what was reserved.

        Raises:
            LocalProtocolError: it is not open.
            RemoteProtocolError: a report that cannot be. Nothing has changed.
        """
        self._step.check_open(step_id)
        self.listed.check(report)
        self._step.commit(step_id)
        if not self._is_step_old:
            self.listed.take(report)
        self._forget_step()

    def withdraw(self, step_id: int, report: Report | None = None) -> None:
        """End a step that was not computed: release all who take part in it, since they start over.

        Args:
            report: of rank 0, if it has made one all the same: what is gone by it is believed, what is new is not.

        Raises:
            LocalProtocolError: it is not open.
            RemoteProtocolError: a report that cannot be. Nothing has changed.
        """
        self._step.check_open(step_id)
        self.listed.check(report or {})
        self._step.withdraw(step_id)
        if not self._is_step_old:
            self.listed.take_losses(report or {})
        for request_id in self._taking_part:
            self._untrack(request_id)
        self._forget_step()

    def new_epoch(self) -> int:
        """Forget all content at once, while requests go on; return the number of the epoch that begins.

        What requests that run now compute, and what an open step reports, is listed no more. The workers clear their
        stores before the next step.
        """
        self.epoch += 1
        self.listed.clear()
        self._reserved.clear()
        self._is_step_old = self._step.is_open
        for tracked in self._tracked.values():
            tracked.is_old = True
        return self.epoch

    def reset(self) -> None:
        """Forget everything, requests and the open step too: so have the workers."""
        self.listed.clear()
        self._tracked: dict[int, TrackedRequest] = {}
        self._step: StepLog[int] = StepLog()  # its notices: released requests
        self._forget_step()

    # ---- looking in

    def holders(self) -> set[int]:
        """Return the ids of the requests that have been scheduled and not released."""
        return set(self._tracked)

    def stats(self) -> PrefixIndexStats:
        return PrefixIndexStats(
            blocks=len(self.listed),
            reserved=sum(len(rows) for rows in self._reserved.values()),
            requests=len(self._tracked),
            hit_rows=self._hit_rows,
            dropped=self.listed.num_dropped,
        )

    def check_integrity(self) -> None:
        """Raise `InvariantError` if the tables contradict each other."""
        self.listed.check_integrity()
        if (self._reserved or self._taking_part) and not self._step.is_open:
            raise InvariantError("rows are reserved without a step")
        if not self._taking_part <= self._tracked.keys():
            raise InvariantError("a step is being built for a request that is not tracked")

    # ---- inside

    def _num_rows(self, request: Request, num_tokens: int, key: str) -> int:
        """Return how many of a request's first `num_tokens` rows of a key can be had."""
        block_size, listed, hashes = self.block_size, self.listed, request.block_hashes
        num_blocks = -(-num_tokens // block_size)
        for index in range(listed.num_full(hashes, key, num_blocks), num_blocks):
            if index >= len(hashes):
                return index * block_size
            num = listed.num_rows(hashes[index], key)
            wanted = min(block_size, num_tokens - index * block_size)
            if num < wanted and request.request_id not in self._no_speculative_hits:
                for first, end, written in self._reserved.get(hashes[index], ()):
                    if first <= num < end and key in written:
                        num = end
            if num < wanted:
                return index * block_size + num
        return num_tokens

    def _untrack(self, request_id: int) -> None:
        if self._tracked.pop(request_id, None) is not None:
            self._step.add(request_id)

    def _forget_step(self) -> None:
        self._reserved: dict[bytes, list[tuple[int, int, Collection[str]]]] = {}  # by hash: rows [first, end) of keys
        self._taking_part: set[int] = set()
        self._is_step_old = False  # an epoch has begun since it was opened
