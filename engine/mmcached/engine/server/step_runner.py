"""Runs one step at a time: sends its plan to the workers, holds leases for their reads, and collects the results.

    idle -- start --> in flight -- every rank has answered --> idle        the caller commits the results
                          |
                          +-- void: a rank has lost its caches --> idle when every living rank has answered or died

Results of a void step are ignored; but no step starts until they are in, so that a worker's death is attributed to the
step that it was given last.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import structlog

from mmcached.engine.scheduling.scheduler import Scheduler
from mmcached.engine.scheduling.step import ScheduledStep
from mmcached.engine.server.engine_latency import EngineLatency
from mmcached.engine.server.held_records import HeldRecords
from mmcached.engine.server.item_frames import ItemFrames
from mmcached.engine.server.plan import build_plan
from mmcached.engine.server.step_results import Result, StepResults
from mmcached.engine.server.worker_group import WorkerGroup
from mmcached.wire.errors import CacheMiss, InvariantError, PeerGone, error_to_wire
from mmcached.wire.sockets.frames import Frame

log = structlog.get_logger("mmcached.engine")


class StepRunner:
    """Step in flight of one engine. After `timeout_s` on the monotonic clock it counts as hung."""

    def __init__(
        self,
        scheduler: Scheduler,
        group: WorkerGroup,
        items: ItemFrames,
        records: HeldRecords,
        *,
        incarnation: int,
        timeout_s: float,
        latency: EngineLatency,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._group = group
        self._items = items
        self._records = records
        self._incarnation = incarnation
        self._timeout_s = timeout_s
        self._clock = clock
        self._in_flight: StepResults | None = None
        self._void: StepResults | None = None
        self.latency = latency
        self.num_steps = 0

    @property
    def can_start(self) -> bool:
        is_idle = self._in_flight is None and (self._void is None or not self._is_void_computed())
        return is_idle and self._group.are_all_attached and self._scheduler.has_work()

    def start(self) -> StepResults | None:
        """Schedule a step, if there is work, and send its plan to every worker; return the step if it has no plan."""
        step = self._scheduler.schedule()
        if step is None:
            return None
        self.latency.start(step)
        links = self._group.in_rank_order()
        results = StepResults(step, len(links), self._clock() + self._timeout_s)
        results.held = self._records.hits_of([request.request_id for request, *_ in step.encode])
        try:
            plan, payload = build_plan(step, self._items, engine_incarnation=self._incarnation, worker_epoch=0)
            results.is_shared = len(links) > 1 and any(item.store_epoch for item in plan.encode)
        except CacheMiss as miss:
            results.plan_error = error_to_wire(miss)
            return results
        except Exception as error:
            log.exception("cannot build the plan of a step", step=step.step_id)
            reason = f"cannot build the plan of its step: {type(error).__name__}; see the engine's log, and report it"
            results.plan_error = error_to_wire(InvariantError(reason))
            return results
        self._in_flight = results
        for link in links:
            try:
                self._group.send(link, msgspec.structs.replace(plan, worker_epoch=link.worker_epoch), payload)
            except PeerGone:
                # Its successor's hello voids the step; if none comes, the step's deadline ends it.
                log.warning("worker gone", rank=link.rank)
            else:
                results.given_to[link.rank] = link.worker_epoch
        self.num_steps += 1
        return None

    def add_result(self, result: Result, payload: list[Frame]) -> StepResults | None:
        """Add a rank's result; return the step's results if it was the last rank."""
        link = self._group.by_epoch(result.worker_epoch)
        if link is None or result.engine_incarnation != self._incarnation:
            return None
        if self._void is not None and result.step == self._void.step.step_id:
            self._void.add(link.rank, result, payload)
        if self._in_flight is None or result.step != self._in_flight.step.step_id:
            return None
        results = self._in_flight
        results.add(link.rank, result, payload)
        if not results.is_complete:
            return None
        self._in_flight = None
        return results

    def computed_by(self, rank: int) -> ScheduledStep | None:
        """Return the step in flight if this rank was given it and has not answered; its death is blamed on it."""
        if self._in_flight is None or rank not in self._in_flight.computing():
            return None
        return self._in_flight.step

    def void(self) -> None:
        """Void the step in flight, after the caller has reset the scheduler."""
        if self._in_flight is not None:
            self._void, self._in_flight = self._in_flight, None

    @property
    def has_deadline(self) -> bool:
        """Whether a step is being computed, so that its deadline must be checked."""
        return self._in_flight is not None or self._void is not None

    def check_deadline(self) -> None:
        """Raise `PeerGone`, with the ranks that have not answered, if the step is past its deadline."""
        hung = self._in_flight
        if hung is None:
            hung = self._void if self._is_void_computed() else None
        if hung is not None and self._clock() > hung.deadline:
            missing = hung.missing_ranks
            raise PeerGone(f"step {hung.step.step_id}: no output from rank(s) {missing} in {self._timeout_s} s")

    def _is_void_computed(self) -> bool:
        """Return whether a living worker may still compute the void step; forget the step if not."""
        if self._void is not None and set(self._void.computing().values()).isdisjoint(self._group.epochs):
            self._void = None
        return self._void is not None
