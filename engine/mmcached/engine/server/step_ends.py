"""Ends a step: commits it and sends the results if all ranks have computed it, or withdraws it."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from mmcached.engine.encoder.worker_check import check_encoder_caches
from mmcached.engine.scheduling.scheduler import Scheduler
from mmcached.engine.scheduling.step import ScheduledStep
from mmcached.engine.server.cache_news import CacheNews
from mmcached.engine.server.engine_latency import EngineLatency
from mmcached.engine.server.frontend_connection import FrontendConnection
from mmcached.engine.server.held_records import HeldRecords
from mmcached.engine.server.open_requests import EngineRequests
from mmcached.engine.server.step_results import StepResults
from mmcached.engine.server.worker_group import WorkerGroup
from mmcached.wire.errors import CacheMiss, ChannelFull, ErrorInfo, error_from_wire
from mmcached.wire.messages import engine as received
from mmcached.wire.process.turns import Guard

log = structlog.get_logger("mmcached.engine")


class StepEnds:
    """Commits or withdraws the steps of one engine; `publish` publishes the statistics before results are sent.

    If `checks_workers`, compares the encoder cache table with the workers' caches after each step.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        frontend: FrontendConnection,
        group: WorkerGroup,
        requests: EngineRequests,
        *,
        records: HeldRecords,
        latency: EngineLatency,
        news: CacheNews,
        guard: Guard,
        checks_workers: bool,
        publish: Callable[[], object],
    ) -> None:
        self.num_failed = 0
        self._scheduler = scheduler
        self._frontend = frontend
        self._group = group
        self._requests = requests
        self._records = records
        self._latency = latency
        self._news = news
        self._guard = guard
        self._checks_workers = checks_workers
        self._publish = publish

    def end_step(self, results: StepResults) -> None:
        """Commit a step that all ranks have run, or withdraw it. Raises `InvariantError` if the ranks disagree."""
        error = results.failure()
        if error is not None:
            self._withdraw(results, error)
        else:
            self._commit(results)

    def _commit(self, results: StepResults) -> None:
        step, (output, payload) = results.step, results.answer()
        self._requests.results.gather(output, payload)
        sampled = {entry.request_id: entry.token_id for entry in output.sampled}
        finished = self._scheduler.commit(step, sampled, results.prefix_report(), output.missing)
        self._latency.commit(step)
        if self._checks_workers:
            table = self._scheduler.encoder_cache_manager
            check_encoder_caches(table.ready_keys(), table.lingering_keys(), results.encoder_keys(), step=step.step_id)
        if self._news.is_routed_by:  # before the answers: a client's next prompt may extend what was just computed
            self._guard.call("cache contents", self._news.announce)
        answers = self._requests.take_answers(finished)
        self._publish()
        for message, frames in answers:
            self._frontend.send(message, frames)
        self._send_streams(step, output)  # after the answers, which end their streams

    def _send_streams(self, step: ScheduledStep, output: received.StepOutput) -> None:
        results = self._requests.results
        if not results.has_streams:
            return
        sampled = (chunk.request for chunk in step.chunks if chunk.sample)
        message, frames = results.unsent(sampled, dict.fromkeys(made.request_id for made in output.rows))
        if not message.streams and not message.rows:
            return
        try:
            self._frontend.dialer.send(message, frames)
        except ChannelFull as error:
            log.warning("tokens and rows not sent; retried with the next step", reason=str(error))
        else:
            results.mark_sent(message)

    def _withdraw(self, results: StepResults, error: ErrorInfo) -> None:
        step = results.step
        log.error("step failed", step=step.step_id, requests=step.request_ids(), reason=error.message)
        self.num_failed += 1
        self._scheduler.withdraw(step, results.prefix_report())
        cause = error_from_wire(error)
        lost = self._requests.requests_reading(step, cause.mm_hashes) if isinstance(cause, CacheMiss) else []
        if not lost:
            self._scheduler.blame_failure(step, cause)
        for request, feature in lost:
            if feature.has_output:
                self._records.drop(self._group.encoder_fingerprint, feature.mm_hash, request.tenant)
            self._scheduler.abort(request.request_id)
            self._requests.miss(request)
