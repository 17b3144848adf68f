"""Scheduler: selects the requests of the next step, and advances them when it is committed. Does no I/O.

    waiting --admit--> running --finish--> (gone)
       ^                  |
       +--- preempt (no KV blocks), withdraw (the step failed), reset (the workers forgot) --- all from token 0
                                            |                     |
                                            +------- blame -------+---> suspects, computed alone (`suspects`)

One step is in flight at a time; its results are reserved in all `caches` until `commit` or `withdraw`. Running requests
are served first, then admitted waiting requests (`block_admission`), in the order of `request_queue`. Preemption takes
the last request in that order, never one already served in the step.

No request starves, unless more urgent requests keep coming. The first running request gets a full token budget, a full
encoder budget and, by preemption from the end, all blocks. If it waits for encoder space, the encoder is closed to
later requests (`encoder_inputs`): they go on with the item they hold, and free it at its end or when preempted. Only
requests without items may overtake a request that waits for the encoder, or a running suspect; no later request
overtakes a waiting suspect, and every second step is a suspect's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from mmcached.engine.hidden_states.listed_rows import Report
from mmcached.engine.scheduling.admission import check_request
from mmcached.engine.scheduling.block_admission import BlockAdmission
from mmcached.engine.scheduling.caches import Caches
from mmcached.engine.scheduling.request_queue import RequestQueue
from mmcached.engine.scheduling.step import ScheduledChunk, ScheduledStep
from mmcached.engine.scheduling.step_builder import ScheduleOutcome, StepBuilder
from mmcached.engine.scheduling.suspects import Suspects
from mmcached.engine.steps.request import Request, RequestStatus
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import (
    CacheMiss,
    InvalidRequest,
    InvariantError,
    LocalProtocolError,
    MmcachedError,
    RemoteProtocolError,
)
from mmcached.wire.messages.engine import RowsMissing

# Read for every request of every step; the enum lookup takes 60 ns.
_RUNNING = RequestStatus.RUNNING


class Scheduler:
    """All unfinished requests of one engine, and its caches; only the scheduler changes `caches` and `suspects`.

    Raises `ConfigError` for budgets under which an item could never be computed.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self._config = config
        self.caches = Caches(config)
        self.kv_cache_manager = self.caches.kv
        self.encoder_cache_manager = self.caches.encoder
        self.tensor_prefix_index = self.caches.prefix_index
        self.num_preemptions = 0
        self._failed: list[tuple[Request, MmcachedError]] = []
        self.suspects = Suspects(config.limits.max_deaths_per_request)
        self._requests: dict[int, Request] = {}
        self._waiting = RequestQueue()
        self._running = RequestQueue()
        self._num_arrivals = 0
        self._in_flight: ScheduledStep | None = None
        self._next_step_id = 0

    @property
    def running(self) -> list[Request]:
        return list(self._running)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def has_work(self) -> bool:
        """Return whether a request is unfinished; then `schedule` returns a step, unless one is in flight."""
        return bool(self._requests)

    # ---- requests

    def add_request(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InvalidRequest: it could never be served.
            LocalProtocolError: its id is in use.
        """
        if request.request_id in self._requests:
            raise LocalProtocolError(f"request {request.request_id}: id is in use")
        check_request(request, self._config, min(self.caches.encoder_budget))
        self.caches.alignment.limit_sharing(request, self._config.block_size)
        urgency = request.priority if self._config.scheduling_policy == "priority" else 0
        request.place = urgency, self._num_arrivals
        self._num_arrivals += 1
        self._requests[request.request_id] = request
        self._waiting.add(request)

    def abort(self, request_id: int) -> None:
        """End a request without an answer; ignores unknown and ended requests.

        Blocks that the step in flight still writes are freed when that step ends.
        """
        request = self._requests.get(request_id)
        if request is None:
            return
        request.status = RequestStatus.ABORTED
        if self._in_flight is None or request_id not in self._in_flight.request_ids():
            self._remove(request)

    # ---- steps

    def schedule(self) -> ScheduledStep | None:
        """Return the next step, which is then in flight; None if no request is unfinished.

        Raises `LocalProtocolError` if a step is in flight already.
        """
        if self._in_flight is not None:
            raise LocalProtocolError(f"step {self._in_flight.step_id} is in flight: commit or withdraw it first")
        # An attempt that schedules no request has preempted at least one, so the next attempt has more free blocks.
        for _ in range(len(self._running) + 1):
            if not self._requests:
                return None
            for alone in self.suspects.turns():
                self._in_flight = self._try_step(alone)
                if self._in_flight is not None:
                    self.suspects.note_turn(alone)
                    return self._in_flight
        if not self._requests:
            return None
        raise InvariantError(f"{len(self._requests)} unfinished request(s), none of which can run")

    def commit(
        self,
        step: ScheduledStep,
        sampled: Mapping[int, int],
        prefix_report: Report | None = None,
        missing: Collection[RowsMissing] = (),
    ) -> list[Request]:
        """Publish the step in flight, which the workers have computed, and advance its requests.

        Args:
            sampled: the next token by request id, for each chunk with `sample`.
            prefix_report: rank 0's report of its prefix store.
            missing: rows after prefix hits that rank 0 lacks; these requests wait again, from token 0, and are sampled
                again.

        Returns:
            The requests that are complete now; nothing is held for them.

        Raises:
            LocalProtocolError: this step is not in flight.
            RemoteProtocolError: `sampled` has missing or unexpected requests, or the report is invalid. Nothing has
                changed.
        """
        self._check_in_flight(step)
        expected = {chunk.request.request_id for chunk in step.chunks if chunk.sample}
        if sampled.keys() != expected:
            wrong = sorted(sampled.keys() ^ expected)
            raise RemoteProtocolError(f"requests {wrong}: sampled unexpectedly, or not sampled", "sampled")
        self.caches.commit(step.step_id, prefix_report or {})
        self._in_flight = None
        set_back = self._note_missing(missing) if missing else ()
        ended = [
            chunk.request
            for chunk in step.chunks
            if chunk.request.request_id not in set_back and self._advance(chunk, sampled)
        ]
        for request, input_id, _ in step.emit:
            request.num_emitted = input_id + 1
            self.encoder_cache_manager.free_encoder_input(request, input_id)
            if request.num_emitted == len(request.features) and not request.is_finished:
                request.status = RequestStatus.FINISHED
        ended += {item.request.request_id: item.request for item in step.emit if item.request.is_finished}.values()
        for request in ended:
            self._remove(request)
        self.suspects.discard_cleared()
        return [request for request in ended if request.status is RequestStatus.FINISHED]

    def withdraw(self, step: ScheduledStep, prefix_report: Report | None = None) -> None:
        """Publish nothing of the step in flight, which has failed; its requests wait again, from token 0.

        Items emitted in earlier steps stay emitted. Raises for step and report as `commit` does.
        """
        self._check_in_flight(step)
        self.caches.withdraw(step.step_id, prefix_report)
        self._in_flight = None
        taken_part = set(step.request_ids())
        self._requeue([request for request in self._running if request.request_id in taken_part])

    def reset(self) -> None:
        """Clear the caches, as the workers have, and drop the step in flight; its requests wait again, from token 0."""
        if self._in_flight is not None:
            self.caches.withdraw(self._in_flight.step_id)
            self._in_flight = None
        self._requeue(list(self._running))
        self.caches.reset()

    def blame_failure(self, step: ScheduledStep, error: MmcachedError) -> None:
        """Fail the request that was alone in a failed step; several requests become suspects."""
        self._blame(step, lambda request: error)

    def blame_death(self, step: ScheduledStep) -> None:
        """Make the requests of a step that killed a worker suspects, after `reset`.

        A request that was alone in it, and has reached `max_deaths_per_request`, fails.
        """
        self._blame(step, self.suspects.sentence)

    def take_failed(self) -> list[tuple[Request, MmcachedError]]:
        """Return and clear the requests failed by `blame_*` or while being scheduled, with their errors."""
        failed, self._failed = self._failed, []
        return failed

    # ---- building a step

    def _try_step(self, alone: Request | None) -> ScheduledStep | None:
        """Return a step of `alone`, or (None) of all requests but suspects; None, with no step open, if it is empty."""
        step_id = self._next_step_id
        self.caches.begin_step(step_id)
        builder = StepBuilder(self._config, self.caches, is_shared=len(self._requests) > 1)
        num_preemptions = self.num_preemptions
        self._serve_running(builder, alone)
        if self._waiting and self.num_preemptions == num_preemptions:
            self._admit_waiting(builder, alone)
        if builder.is_empty:
            self.caches.withdraw(step_id)
            is_stuck = alone is None and self.num_preemptions == num_preemptions
            if is_stuck and sum(request.kind == "generate" for request in self._running) > 1:
                # They wait for the encoder, each holding an item that a chunk has divided (`Alignment`).
                self._preempt_last()
            return None
        self._next_step_id += 1
        step = builder.build(step_id, self._requests)
        self.caches.launch_step(step_id)
        return step

    def _serve_running(self, builder: StepBuilder, alone: Request | None) -> None:
        requests = iter(self.suspects.taking_part(self._running, alone))
        while (request := builder.add_decodes(requests)) is not None:
            try:
                while request.status is _RUNNING and builder.add_running(request) is ScheduleOutcome.KV_REFUSED:
                    self._preempt_last()  # perhaps this request itself; never an earlier one, which is in the step
            except (InvalidRequest, CacheMiss) as error:
                self._fail(request, error)

    def _admit_waiting(self, builder: StepBuilder, alone: Request | None) -> None:
        admission = BlockAdmission(self._config, self.kv_cache_manager, self._running)
        is_stalled = alone is None and len(self.suspects) > 0  # a suspect may wait for the encoder
        for request in list(self._waiting) if alone is None else self.suspects.taking_part(self._waiting, alone):
            if len(self._running) >= self._config.max_num_seqs or (alone is None and request.alone_until):
                return
            if is_stalled and request.features:
                continue
            try:
                outcome = builder.add_waiting(request, admission)
            except (InvalidRequest, CacheMiss) as error:
                self._fail(request, error)
                continue
            match outcome:
                case ScheduleOutcome.SCHEDULED:
                    self._waiting.remove(request)
                    request.status = RequestStatus.RUNNING
                    request.was_admitted = True
                    self._running.add(request)
                case ScheduleOutcome.ENCODER_REFUSED:
                    is_stalled = True
                case ScheduleOutcome.NO_TOKENS | ScheduleOutcome.KV_REFUSED:
                    return

    def _preempt_last(self) -> None:
        """Preempt the last running request that holds blocks; "encode" requests hold none."""
        victim = next(request for request in reversed(self._running) if request.kind == "generate")
        victim.num_preemptions += 1
        self.num_preemptions += 1
        self._requeue([victim])

    # ---- ending a step

    def _check_in_flight(self, step: ScheduledStep) -> None:
        if step is not self._in_flight:
            raise LocalProtocolError(f"step {step.step_id} is not in flight")

    def _note_missing(self, missing: Collection[RowsMissing]) -> set[int]:
        requests: dict[int, Request] = {}
        for rows in missing:
            request = self._requests.get(rows.request_id)
            if request is not None:
                requests[rows.request_id] = request
                self.tensor_prefix_index.note_missing(request, rows.key, rows.first)
        self._requeue([request for request in self._running if request.request_id in requests])
        return set(requests)

    def _advance(self, chunk: ScheduledChunk, sampled: Mapping[int, int]) -> bool:
        """Add a computed chunk and its sample to its request, free the items it has passed; return whether it ended."""
        request, start = chunk.request, chunk.start
        end = request.num_computed_tokens = start + chunk.num_tokens
        if request.rows is not None and end > request.num_rows_delivered:
            request.num_rows_delivered = end
        if start < request.features_end:
            self.caches.free_passed_items(request, start, end)
        is_running = request.status is _RUNNING
        if chunk.sample:
            request.append_output_token(sampled[request.request_id])
            request.finish_reason = request.reason_to_finish()
            if request.finish_reason is not None and is_running:
                request.status = RequestStatus.FINISHED
                is_running = False
        return not is_running

    def _remove(self, request: Request) -> None:
        self.caches.free(request)
        self.suspects.discard(request)
        self.kv_cache_manager.free_block_hashes(request)
        del self._requests[request.request_id]
        (self._running if request in self._running else self._waiting).remove(request)

    def _blame(self, step: ScheduledStep, sentence: Callable[[Request], MmcachedError | None]) -> None:
        """Fail the request that was alone in the step if `sentence` returns an error; make all others suspects."""
        goals = [goal for goal in step.goals() if self._requests.get(goal[0].request_id) is goal[0]]
        error = self.suspects.blame(goals, sentence if len(step.goals()) == 1 else None)
        if error is not None:
            self._fail(goals[0][0], error)

    def _fail(self, request: Request, error: MmcachedError) -> None:
        request.status = RequestStatus.ABORTED
        self._failed.append((request, error))
        self._remove(request)

    def _requeue(self, requests: list[Request]) -> None:
        """Return running requests to the waiting queue; remove those that were aborted."""
        for request in reversed(requests):
            if request.is_finished:
                self._remove(request)
                continue
            self.caches.free(request)
            request.num_computed_tokens = 0
            request.status = RequestStatus.WAITING
            self._running.remove(request)
            self._waiting.add(request)
