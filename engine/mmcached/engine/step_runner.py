"""One step at a time: from the books to the workers, and what they have made of it back.

    idle -- start --> in flight -- every rank has answered --> idle        the outcome is the caller's to book
                          |
                          +-- void: a rank has lost its caches; late answers count for nothing but their reads

Books the reads that a step makes under leases, before its plan is sent. Publishes nothing: that is `Scheduler.commit`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from mmcached.engine.item_frames import ItemFrames
from mmcached.engine.leases import LeaseBook
from mmcached.engine.plan import build_plan, leases_read
from mmcached.engine.scheduler import ScheduledStep, Scheduler
from mmcached.engine.step_results import Result, StepResults
from mmcached.engine.worker_group import WorkerGroup
from mmcached.wire.channels import Frame
from mmcached.wire.errors import ErrorInfo, PeerGone
from mmcached.wire.messages.engine import PrefixReport, StepOutput
from mmcached.wire.stats import WorkerStats

log = structlog.get_logger("mmcached.engine")


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A step that every rank has answered: rank 0's output with its payload, or the error of the first that failed.

    Attributes:
        prefix_report: what rank 0 says of its prefix store.
        encoder_keys: what the encoder cache of each rank holds now; None from ranks that do not say.
    """

    step: ScheduledStep
    output: StepOutput | None
    payload: list[Frame]
    error: ErrorInfo | None
    prefix_report: PrefixReport
    encoder_keys: dict[int, list[str] | None]


class StepRunner:
    """The step in flight of one engine.

    Args:
        timeout_s: how long a step may take before it counts as hung.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        group: WorkerGroup,
        leases: LeaseBook,
        items: ItemFrames,
        *,
        nonce: int,
        timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._group = group
        self._leases = leases
        self._items = items
        self._nonce = nonce
        self._timeout_s = timeout_s
        self._clock = clock
        self._in_flight: tuple[ScheduledStep, StepResults] | None = None
        self._worker_stats: dict[int, WorkerStats] = {}
        self.num_steps = 0

    @property
    def is_in_flight(self) -> bool:
        return self._in_flight is not None

    @property
    def can_start(self) -> bool:
        return self._in_flight is None and self._group.are_all_attached and self._scheduler.has_work()

    @property
    def worker_stats(self) -> list[WorkerStats]:
        """What each worker has last told of itself, by rank."""
        return [self._worker_stats[rank] for rank in sorted(self._worker_stats)]

    def start(self) -> None:
        """Schedule a step and send its plan to every worker. Nothing happens if there is nothing to do."""
        step = self._scheduler.schedule()
        if step is None:
            return
        links = self._group.in_rank_order()
        self._in_flight = step, StepResults(step.step_id, len(links), self._clock() + self._timeout_s)
        # Booked before the first plan is sent: a fast worker's read_done may not come first.
        self._leases.reading(leases_read(step), self._group.epochs, step.step_id)
        for link in links:
            plan, payload = build_plan(step, self._items, engine_nonce=self._nonce, worker_epoch=link.worker_epoch)
            try:
                self._group.send(link, plan, payload)
            except PeerGone:
                # Its successor's hello voids the step; if none comes, the step's deadline ends it.
                log.warning("worker gone", rank=link.rank)
        self.num_steps += 1

    def take(self, result: Result, payload: list[Frame]) -> FinishedStep | None:
        """Take a rank's answer; return the step if it was the last one awaited.

        Reads that are done count whatever step they belong to; all else counts only for the step in flight.

        Raises:
            InvariantError: the ranks computed different things, or one contradicts the books.
        """
        link = self._group.by_epoch(result.worker_epoch)
        if link is None or result.engine_nonce != self._nonce:
            return None
        for done in result.read_done:
            self._leases.read_done(result.worker_epoch, done.step, done.seq)
        if isinstance(result, StepOutput):
            self._worker_stats[link.rank] = result.stats
        if self._in_flight is None or result.step != self._in_flight[0].step_id:
            return None
        step, results = self._in_flight
        results.add(link.rank, result, payload)
        if not results.is_complete:
            return None
        self._in_flight = None
        failure = results.failure()
        if failure is not None:
            return FinishedStep(step, None, [], failure.error, results.prefix_report(), {})
        output, frames = results.answer()
        return FinishedStep(step, output, frames, None, results.prefix_report(), results.encoder_keys())

    def void(self) -> None:
        """Forget the step in flight: its caller has reset the books."""
        self._in_flight = None

    def check_deadline(self) -> None:
        """Raises:
        PeerGone: the step in flight is hung; the text names the ranks that have not answered.
        """
        if self._in_flight is not None and self._clock() > self._in_flight[1].deadline:
            results = self._in_flight[1]
            missing = results.missing_ranks
            raise PeerGone(f"step {results.step}: no output of rank(s) {missing} in {self._timeout_s} s")
