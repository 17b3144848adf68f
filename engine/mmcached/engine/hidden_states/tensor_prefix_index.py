"""Which rows of prefixes rank 0's tensor prefix store has, by content and key; what a KV hit may be used for.

A KV hit spares computing tokens, and with it the rows that other stages want of them. It is of use only as far as these
rows are in the store:

    KV hit          |-------------------------------|
    hidden_states   |-------------------|                   usable for hidden_states:     20
    codes           |-----------|       |------|                       for both keys:     12
    positions       0          12      20             a gap ends it, and a tail without its head is none

Rows are found under the digests of the request's blocks (`Request.block_hashes`), and by how many rows the block has
from its beginning on. `reserve -> commit -> publish`, as in the KV cache manager: a chunk that is scheduled reserves
its rows, on which later chunks may count; when the step is committed, the report of the worker decides what is listed,
whatever was reserved. What the worker has evicted is in its report too.

    begin_step ── usable_prefix, reserve … ── launch_step ── commit(report) | withdraw

Knows nothing of KV blocks, budgets or tensors. Invariant: listed is what a worker has reported, in this epoch, and
nothing that has been reported gone since.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mmcached.engine.hidden_states.listed_rows import ListedRows, Report
from mmcached.engine.hidden_states.prefix_residents import Residents
from mmcached.engine.hidden_states.prefix_steps import PrefixSteps, Promise
from mmcached.engine.steps.request import Request
from mmcached.wire.errors import ConfigError, InvariantError, LocalProtocolError


@dataclass(frozen=True, slots=True)
class BlockNames:
    """What a worker must be told with a chunk: the digests of the request's blocks from number `first_block` on."""

    first_block: int
    digests: Sequence[bytes]


NOTHING_TO_TELL = BlockNames(0, ())


@dataclass(frozen=True, slots=True)
class PrefixIndexStats:
    """Gauges, but for the last two.

    Attributes:
        reserved: blocks that open steps are going to write to, once for each chunk.
        hit_rows: of one key, behind first chunks that wanted them.
        dropped: listed blocks, for want of room.
    """

    blocks: int
    reserved: int
    requests: int
    steps: int
    hit_rows: int
    dropped: int


class TensorPrefixIndex:
    """The engine's view of the rows that rank 0 keeps.

    Args:
        block_size: tokens under one digest.
        max_blocks: that are listed; as many as the store can keep, else some of what it keeps is not found.

    Raises:
        ConfigError: a size below 1.
    """

    def __init__(self, block_size: int, *, max_blocks: int) -> None:
        for field, value in (("block_size", block_size), ("max_blocks", max_blocks)):
            if value < 1:
                raise ConfigError(field, value, "at least 1")
        self.block_size = block_size
        self.epoch = 0
        self._listed = ListedRows(block_size, max_blocks)
        self._steps = PrefixSteps()
        self._residents = Residents()
        self._wary: set[int] = set()
        self._hit_rows = 0

    # ---- scheduling

    def usable_prefix(self, request: Request, num_kv_hit_tokens: int, keys: Collection[str]) -> int:
        """Return for how many of the tokens of a KV hit all wanted rows can be had. Changes nothing.

        The rows are there when the request's first chunk is run. It may be any number, also within a block: whoever
        can only go on at a block's beginning rounds it down and computes the rest.

        Args:
            request: looked up in the KV cache, so its digests are known as far as the hit goes.
            keys: that are wanted of the request; none: the whole hit can be used.
        """
        num_usable = num_kv_hit_tokens
        for key in keys:
            num_usable = self._num_rows(request, num_usable, key, None)
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
        """Book that the step being built computes tokens `[start, start + num_tokens)`; after `allocate_slots`.

        Args:
            written: keys of which the model gives rows.
            needed: keys whose rows before `start` this request wants from the store; for its first chunk.

        Returns:
            What the plan tells the worker with this chunk.

        Raises:
            LocalProtocolError: no step is being built.
        """
        step = self._steps.building
        if step is None:
            raise LocalProtocolError(f"request {request.request_id}: rows reserved between two steps; begin one first")
        end = start + num_tokens
        step.takes_part.add(request.request_id)
        resident = self._residents.find(request.request_id)
        if resident is None:
            resident = self._residents.open(request.request_id)
        elif resident.is_in_open_block(start, end, len(request.block_hashes)):
            return NOTHING_TO_TELL  # most of the time, of a request that decodes
        if resident.is_void:
            return NOTHING_TO_TELL
        if needed and start and not resident.has_chunk:
            counted_on: dict[Promise, None] = {}
            for key in needed:
                self._num_rows(request, start, key, counted_on)
            self._steps.count_on(counted_on, request.request_id)
            self._hit_rows += start * len(needed)
        resident.has_chunk = True
        digests = request.block_hashes
        rows = []
        for index in range(start // self.block_size, min(-(-end // self.block_size), len(digests))):
            origin = index * self.block_size
            rows.append((digests[index], max(start - origin, 0), min(end - origin, self.block_size)))
        if rows and written:
            self._steps.promise(step, Promise(request.request_id, rows, written))
        names = BlockNames(resident.num_named, digests[resident.num_named : -(-end // self.block_size)])
        resident.set_named(resident.num_named + len(names.digests), self.block_size)
        return names

    def release(self, request: Request) -> None:
        """A request has ended or was set back: the worker need not hold its rows. Holding nothing changes nothing.

        In the step being built nothing of it is counted on any more.

        Raises:
            LocalProtocolError: others count on what it would write in the step being built: `withdraw_request`.
        """
        if borrowers := self._steps.borrowers(request.request_id):
            raise LocalProtocolError(
                f"requests {sorted(borrowers)} want rows that request {request.request_id} would write in this step"
            )
        self._leave(request.request_id)
        if request.is_finished:
            self._wary.discard(request.request_id)

    def withdraw_request(self, request: Request) -> list[int]:
        """Take a request out of the step being built, with all who count on what it would have written; release them.

        Returns:
            The ids of those released, the last one scheduled first; empty if it holds nothing.
        """
        if request.request_id not in self._residents:
            return []
        released = [*self._steps.borrowers(request.request_id), request.request_id]
        for request_id in released:
            self._leave(request_id)
        return released

    def take_released(self) -> list[int]:
        """Return the requests that the plan of the step being built must name as released, before its chunks.

        Raises:
            LocalProtocolError: no step is being built.
        """
        step = self._steps.building
        if step is None:
            raise LocalProtocolError("released requests are told with a step; begin one first")
        step.told_released += self._residents.take_released()
        return list(step.told_released)

    def note_missing(self, request: Request, key: str, first: int) -> None:
        """A worker has found that a hit of this request lacks rows of `key` from position `first` on.

        What is listed there is cut, in case a report was lost; and this request, until it ends, counts on nothing any
        more that is only reserved. So it gets on: what is listed was written, and the rest it computes.
        """
        index, num_rows = divmod(first, self.block_size)
        if index < len(request.block_hashes):
            self._listed.cut(request.block_hashes[index], key, num_rows)
        self._wary.add(request.request_id)

    # ---- steps and epochs

    def begin_step(self, step_id: int) -> None:
        """Begin a step; the one before is launched.

        Raises:
            LocalProtocolError: the number is not above those of all steps that have not ended.
        """
        self._steps.begin(step_id)

    def launch_step(self, step_id: int) -> None:
        """The step has been handed to the workers: nobody can be taken out of it any more.

        Raises:
            LocalProtocolError: it is not the one that is being built.
        """
        self._steps.launch(step_id)

    def commit(self, step_id: int, report: Report) -> None:
        """The step was computed: list what rank 0 reports, and nothing else of what was reserved.

        Raises:
            LocalProtocolError: it is not the oldest that has not ended.
            RemoteProtocolError: a report that cannot be. Nothing has changed.
        """
        step = self._steps.check_oldest(step_id)
        self._listed.check(report)
        self._steps.end_oldest(step_id)
        if not step.is_void:
            self._listed.take(report)

    def withdraw(self, step_id: int, report: Report | None = None) -> list[int]:
        """The step was not computed, nor will be those begun later.

        Args:
            report: of rank 0, if it has made one all the same: what is gone by it is believed, what is new is not.

        Returns:
            The requests that counted on rows which are not going to be written: they must be released and start over.

        Raises:
            LocalProtocolError: it has ended, or was never begun.
            RemoteProtocolError: a report that cannot be. Nothing has changed.
        """
        self._listed.check(report or {})
        ended, lost = self._steps.end_from(step_id)
        self._residents.retell(request_id for step in ended for request_id in step.told_released)
        self._residents.begin_anew({request_id for step in ended for request_id in step.takes_part})
        if not ended[0].is_void:
            self._listed.take_losses(report or {})
        return [request_id for request_id in lost if request_id in self._residents]

    def new_epoch(self) -> int:
        """Forget all content at once, while requests go on; return the number of the epoch that begins.

        What requests that run now compute, and what steps in flight report, is listed no more. The workers clear their
        stores before the next step.
        """
        self.epoch += 1
        self._listed.clear()
        self._steps.void()
        self._residents.make_void()
        return self.epoch

    def reset(self) -> None:
        """The workers have forgotten everything, requests too, and no step is in flight: so does the index."""
        self._listed.clear()
        self._steps = PrefixSteps()
        self._residents.clear()

    # ---- looking in

    def holders(self) -> set[int]:
        """Return the ids of the requests that have been scheduled and not released."""
        return self._residents.ids()

    def stats(self) -> PrefixIndexStats:
        num_steps, num_reserved = self._steps.stats()
        return PrefixIndexStats(
            blocks=len(self._listed),
            reserved=num_reserved,
            requests=len(self._residents),
            steps=num_steps,
            hit_rows=self._hit_rows,
            dropped=self._listed.num_dropped,
        )

    def check_integrity(self) -> None:
        """Raise `InvariantError` if the books contradict each other."""
        self._listed.check_integrity()
        open_promises = {promise for step in self._steps for promise in step.promises}
        if any(promise not in open_promises for promise, _ in self._steps.pairs()):
            raise InvariantError("somebody counts on a promise that was taken back")
        building = self._steps.building
        if building and any(promise.request_id not in self._residents for promise in building.promises):
            raise InvariantError(f"step {building.step_id} is being built for a request that holds nothing")

    # ---- inside

    def _num_rows(self, request: Request, num_tokens: int, key: str, counted_on: dict[Promise, None] | None) -> int:
        """Return how many of a request's first `num_tokens` rows of a key can be had; note the promises among them."""
        block_size, listed, digests = self.block_size, self._listed, request.block_hashes
        num_blocks = -(-num_tokens // block_size)
        for index in range(listed.num_full(digests, key, num_blocks), num_blocks):
            if index >= len(digests):
                return index * block_size
            num = listed.num_rows(digests[index], key)
            wanted = min(block_size, num_tokens - index * block_size)
            if num < wanted and request.request_id not in self._wary:
                for first, end, promise in self._steps.promised(digests[index]):
                    if first <= num < end and key in promise.keys:
                        num = end
                        if counted_on is not None:
                            counted_on[promise] = None
            if num < wanted:
                return index * block_size + num
        return num_tokens

    def _leave(self, request_id: int) -> None:
        self._steps.leave(request_id)
        self._residents.release(request_id)
