"""Tensor prefix index: the hidden states of prefixes that rank 0 stores, and the part of a KV hit usable with them.

A KV hit skips tokens whose rows other stages want. So it is usable only as far as the rows are stored:

    KV hit          |-------------------------------|
    hidden_states   |-------------------|                   usable for hidden_states:     20
    codes           |-----------|       |------|                       for both keys:     12
    positions       0          12      20             a gap ends it; rows after a gap do not count

Rows are found under `Request.block_hashes`. A scheduled chunk reserves its rows, and later chunks of the step may rely
on them, since a worker writes before it reads. At commit, the worker's report decides what is listed and what was
evicted.

Invariants: rows are listed if a worker has reported them in this epoch, and not their eviction since; the block hashes
of a tracked request are sent without a gap.
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
class NewBlockHashes:
    """Hashes of a request's blocks, from block number `first_block` on, that a worker needs with a chunk."""

    first_block: int
    block_hashes: Sequence[bytes]


NO_NEW_HASHES = NewBlockHashes(0, ())


@dataclass(frozen=True, slots=True)
class PrefixIndexStats:
    """Gauges, and the counters `hit_rows` and `dropped`.

    Attributes:
        reserved: blocks that the open step writes, once per chunk.
        hit_rows: rows of one key before first chunks that wanted them.
        dropped: listed blocks dropped because the table was full.
    """

    blocks: int
    reserved: int
    requests: int
    hit_rows: int
    dropped: int


class TrackedRequest:
    """Request that rank 0 holds rows for, from its first chunk until it is released.

    `is_old` if it began in a former epoch, so that its hashes do not name the rows it computes.
    """

    __slots__ = ("_end", "_start", "is_old", "num_sent")

    def __init__(self) -> None:
        self.is_old = False
        self.note_sent(0, 0)

    def note_sent(self, num_blocks: int, block_size: int) -> None:
        self.num_sent = num_blocks
        self._start = num_blocks * block_size
        self._end = self._start + block_size

    def is_in_open_block(self, start: int, end: int, num_hashes: int) -> bool:
        """Return whether a chunk stays in the last, partial block, so that there are no new hashes."""
        return self._start <= start and end < self._end and num_hashes <= self.num_sent


class TensorPrefixIndex:
    """The engine's index of the rows that rank 0 stores, at most `max_blocks` blocks, the store's capacity.

    Raises `ConfigError` for a size below 1.
    """

    def __init__(self, block_size: int, *, max_blocks: int) -> None:
        for field, value in (("block_size", block_size), ("max_blocks", max_blocks)):
            if value < 1:
                raise ConfigError(field, value, "at least 1")
        self.block_size = block_size
        self.epoch = 0
        self.listed = ListedRows(block_size, max_blocks)
        self._no_speculative_hits: set[int] = set()  # requests that rely on listed rows only
        self._hit_rows = 0
        self.reset()

    # ---- scheduling

    def usable_prefix(self, request: Request, num_kv_hit_tokens: int, keys: Collection[str]) -> int:
        """Return the number of leading tokens of a KV hit for which every key has rows. Changes nothing.

        It may end within a block. The rows will be there when the request's first chunk runs.
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
    ) -> NewBlockHashes:
        """Note that the open step computes tokens `[start, start + num_tokens)`; after `allocate_slots`.

        Args:
            written: keys of the rows that the model computes.
            needed: keys whose rows before `start` this request wants from the store; for its first chunk.

        Returns the hashes to be sent with this chunk. Raises `LocalProtocolError` if no step is open.
        """
        if not self._step.is_open:
            raise LocalProtocolError(f"request {request.request_id}: rows reserved between two steps; begin one first")
        end, hashes = start + num_tokens, request.block_hashes
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            tracked = self._tracked[request.request_id] = TrackedRequest()
            self._hit_rows += start * len(needed)
        elif tracked.is_in_open_block(start, end, len(hashes)):
            return NO_NEW_HASHES  # the common case: a request that decodes
        self._taking_part.add(request.request_id)
        if tracked.is_old:
            return NO_NEW_HASHES
        for index in range(start // self.block_size, min(-(-end // self.block_size), len(hashes)) if written else 0):
            origin = index * self.block_size
            rows = max(start - origin, 0), min(end - origin, self.block_size), written
            insort(self._reserved.setdefault(hashes[index], []), rows, key=itemgetter(0))
        new = NewBlockHashes(tracked.num_sent, hashes[tracked.num_sent : -(-end // self.block_size)])
        tracked.note_sent(tracked.num_sent + len(new.block_hashes), self.block_size)
        return new

    def release(self, request: Request) -> None:
        """Note that a request has ended, or starts over, so that the worker may drop its rows.

        Raises `LocalProtocolError` in the open step of the request: later chunks may rely on its rows.
        """
        if request.request_id in self._taking_part:
            raise LocalProtocolError(f"request {request.request_id} takes part in the open step")
        self._untrack(request.request_id)
        if request.is_finished:
            self._no_speculative_hits.discard(request.request_id)

    def take_released(self) -> list[int]:
        """Return and clear the released requests, for the plan. Raises `LocalProtocolError` if no step is open."""
        if not self._step.is_open:
            raise LocalProtocolError("released requests are sent with a step; begin one first")
        return self._step.take_notices()

    def note_missing(self, request: Request, key: str, first: int) -> None:
        """Note that a hit of this request lacked rows of `key` from position `first` on.

        The listed rows are cut there, in case a report was lost; and until the request ends, it does not rely on rows
        that are only reserved. So it makes progress: listed rows were written, and it computes the rest.
        """
        index, num_rows = divmod(first, self.block_size)
        if index < len(request.block_hashes):
            self.listed.cut_rows(request.block_hashes[index], key, num_rows)
        self._no_speculative_hits.add(request.request_id)

    # ---- steps and epochs

    def begin_step(self, step_id: int) -> None:
        self._step.begin(step_id)

    def commit(self, step_id: int, report: Report) -> None:
        """End a step that was computed: list the rows that rank 0 reports.

        Raises `LocalProtocolError` if it is not open, `RemoteProtocolError` for an invalid report; then nothing has
        changed.
        """
        self._step.check_open(step_id)
        self.listed.check(report)
        self._step.commit(step_id)
        if not self._is_step_old:
            self.listed.apply_report(report)
        self._forget_step()

    def withdraw(self, step_id: int, report: Report | None = None) -> None:
        """End a step that was not computed: release all its requests, since they start over.

        Only the losses in rank 0's report count. Raises as `commit`.
        """
        self._step.check_open(step_id)
        self.listed.check(report or {})
        self._step.withdraw(step_id)
        if not self._is_step_old:
            self.listed.apply_losses(report or {})
        for request_id in self._taking_part:
            self._untrack(request_id)
        self._forget_step()

    def new_epoch(self) -> int:
        """Drop all content, while requests go on; return the new epoch.

        Rows that running requests compute, or that an open step reports, are not listed any more.
        """
        self.epoch += 1
        self.listed.clear()
        self._reserved.clear()
        self._is_step_old = self._step.is_open
        for tracked in self._tracked.values():
            tracked.is_old = True
        return self.epoch

    def reset(self) -> None:
        self.listed.clear()
        self._tracked: dict[int, TrackedRequest] = {}
        self._step: StepLog[int] = StepLog()  # the notices are released requests
        self._forget_step()

    # ---- inspection

    def holders(self) -> set[int]:
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
        self.listed.check_integrity()
        if (self._reserved or self._taking_part) and not self._step.is_open:
            raise InvariantError("rows are reserved without a step")
        if not self._taking_part <= self._tracked.keys():
            raise InvariantError("a step is being built for a request that is not tracked")

    # ---- internals

    def _num_rows(self, request: Request, num_tokens: int, key: str) -> int:
        """Return the number of leading rows of a key, of `num_tokens`, that are listed or reserved."""
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
        self._is_step_old = False  # whether an epoch has begun since the step was opened
