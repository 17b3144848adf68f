"""Engine server (P1): schedules steps, sends their plans to the workers, and commits the results.

    frontend <==(frontend_connection)== EngineServer <==(worker_group) workers-<i>.sock== workers 0 … N-1

One thread, one loop, one step in flight. As a client of the store it holds leases on its requests' records; its workers
open their tokens. It never touches tensor bytes, so it imports no torch. Invalid messages are logged or answered; a
contradiction with the scheduler's tables ends the process, before any result of that step is sent.

After a failure:
    frontend   dead, or alive and has dropped this engine: its requests are aborted; all caches stay
    worker     dead: the step in flight is void; all caches are cleared; requests start over at token 0 when the rank is
        back, those of that step one by one; a request that kills workers alone fails
    step hung  past its deadline this process ends, and the group with it: no memory is taken from a living reader
"""

from __future__ import annotations

import math
import secrets
import select
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from mmcached.engine.scheduling.scheduler import Scheduler
from mmcached.engine.server.cache_news import CacheNews
from mmcached.engine.server.engine_latency import EngineLatency
from mmcached.engine.server.frontend_connection import FrontendConnection
from mmcached.engine.server.frontend_messages import FrontendMessages
from mmcached.engine.server.held_records import HeldRecords, contact
from mmcached.engine.server.item_frames import ItemFrames
from mmcached.engine.server.open_requests import EngineRequests
from mmcached.engine.server.probes import EngineProbes
from mmcached.engine.server.step_ends import StepEnds
from mmcached.engine.server.step_runner import StepRunner
from mmcached.engine.server.worker_group import WorkerGroup
from mmcached.engine.server.worker_messages import WorkerMessages
from mmcached.shm.stats.publisher import StatsPublisher
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import ServiceConfig
from mmcached.wire.engine_stats import EncoderCacheStats, EngineStats
from mmcached.wire.errors import InvariantError, MmcachedError, ServiceUnavailable, error_to_wire
from mmcached.wire.messages import engine as received
from mmcached.wire.messages import frontend_from_engines as to_frontend
from mmcached.wire.messages import worker as to_worker
from mmcached.wire.paths import RunDir
from mmcached.wire.process.signals import StopFlag
from mmcached.wire.process.spans import exported_spans
from mmcached.wire.process.turns import REST_S, Guard, TurnShare, longest_rest_s, places
from mmcached.wire.slow_log import SlowLog
from mmcached.wire.sockets.bounds import BOUNDS_OF_ROLES
from mmcached.wire.sockets.listener import Listener
from mmcached.wire.stats import RoleName

if TYPE_CHECKING:
    from mmcached.engine.server.kv_event_publisher import KVEventPublisher
    from mmcached.wire.tracing import StartSpan

log = structlog.get_logger("mmcached.engine")

POLL_INTERVAL_S = 0.25
"""Longest wait while a step is computed, so that its deadline is checked."""


class EngineServer(Closeable):
    """Sockets, scheduler and loop of one engine: call `poll` repeatedly, then `close`.

    `engine_index` selects its `workers-<i>.sock`; `clock` returns monotonic seconds; `start_span` None turns tracing
    off.
    """

    def __init__(
        self,
        run_dir: RunDir,
        config: ServiceConfig,
        engine_index: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        start_span: StartSpan | None = None,
    ) -> None:
        self._clock = clock
        self._start_span = start_span
        self._incarnation = secrets.randbits(63)
        self._scheduler = Scheduler(config)
        self._items = ItemFrames(config)
        self._records = HeldRecords(partial(contact, run_dir.path))
        self._share = TurnShare()
        self._rest_s = longest_rest_s(config.limits)
        self._guard = Guard(ends=(InvariantError,))
        with ExitStack() as stack:
            hello = to_frontend.EngineHello(engine_index, self._incarnation, config.digest())
            self._frontend = FrontendConnection(run_dir.engine_address, hello, clock())
            stack.callback(self._frontend.close)
            stack.enter_context(self._records)
            self._page = stack.enter_context(
                StatsPublisher(run_dir.stats_page, RoleName("engine", engine_index), clock=clock)
            )
            self._worker_channel = stack.enter_context(_listen_for_workers(run_dir, engine_index, clock))
            kv_events = _kv_event_publisher(config, run_dir, engine_index)
            if kv_events is not None:
                stack.callback(kv_events.close)
            self._closing = stack.pop_all()
        self._group = WorkerGroup(
            self._worker_channel, config.world_size, incarnation=self._incarnation, config_digest=config.digest()
        )
        self._news = CacheNews(config, self._scheduler, self._frontend, kv_events)
        self._make_parts(config)
        self._poller = select.poll() if kv_events is None else kv_events.poller()
        self._poller.register(self._frontend.dialer.fileno(), select.POLLIN)
        self._poller.register(self._worker_channel.fileno(), select.POLLIN)

    def _make_parts(self, config: ServiceConfig) -> None:
        self._steps = StepRunner(
            self._scheduler,
            self._group,
            self._items,
            self._records,
            incarnation=self._incarnation,
            timeout_s=config.step_timeout_s,
            latency=EngineLatency(self._clock, slow_ms=config.slow_log_ms, start_span=self._start_span),
            clock=self._clock,
        )
        self._requests = EngineRequests(
            config,
            self._scheduler,
            self._frontend,
            self._group,
            items=self._items,
            records=self._records,
            latency=self._steps.latency,
            clock=self._clock,
            publish=self._publish,
        )
        self._ends = StepEnds(
            self._scheduler,
            self._frontend,
            self._group,
            self._requests,
            records=self._records,
            latency=self._steps.latency,
            news=self._news,
            guard=self._guard,
            checks_workers=config.debug_check_workers,
            publish=self._publish,
        )
        probes = EngineProbes(self._incarnation, self._group, self._records)
        self._workers = WorkerMessages(
            self._worker_channel,
            self._group,
            self._frontend,
            self._scheduler,
            incarnation=self._incarnation,
            steps=self._steps,
            ends=self._ends,
            probes=probes,
            guard=self._guard,
            publish=self._publish,
        )
        self._from_frontend = FrontendMessages(
            self._frontend,
            self._group,
            self._scheduler,
            self._requests,
            world_size=config.world_size,
            items=self._items,
            probes=probes,
            news=self._news,
            guard=self._guard,
            publish=self._publish,
        )

    def poll(self, timeout_s: float) -> None:
        """Handle received messages, waiting up to `timeout_s` unless a step can start; then start a step if possible.

        Raises:
            InvariantError: the tables, the ranks or their caches contradict each other.
            PeerGone: a step is past its deadline.
            ConfigError: the frontend has another configuration. After each of the three the process must end.
        """
        self._poller.poll(math.ceil(self._wait_s(timeout_s) * 1000))
        self._workers.serve(self._share)
        self._worker_channel.check(self._clock())
        self._from_frontend.serve(self._share)
        self._frontend.maintain(self._clock())
        self._from_frontend.send_ready()
        self._steps.check_deadline()
        if self._steps.can_start:
            failed = self._steps.start()
            if failed is not None:
                self._ends.end_step(failed)
        for request, error in self._scheduler.take_failed():
            self._requests.fail(request, error)
        self._guard.call("KV events", self._news.publish)  # late: the workers compute meanwhile
        self._page.publish_if_due(self.stats)

    def wake_on(self, source: StopFlag) -> None:
        """Also end a wait as soon as `source` is readable."""
        self._poller.register(source.fileno(), select.POLLIN)

    def _wait_s(self, timeout_s: float) -> float:
        if self._steps.can_start or self._news.is_replaying or self._worker_channel.has_more:
            return 0.0
        due_s = POLL_INTERVAL_S if self._steps.has_deadline else self._rest_s
        return max(0.0, min(timeout_s, due_s, self._frontend.wait_s(self._clock())))

    def close(self) -> None:
        """Shut down the workers, return the leases, close the sockets. Idempotent."""
        if self._worker_channel.is_closed:
            return
        self._group.send_all(to_worker.Shutdown(self._incarnation))
        self._closing.close()

    # ---- inspection

    def stats(self) -> EngineStats:
        return EngineStats(
            steps=self._steps.num_steps,
            steps_failed=self._ends.num_failed,
            step_latency=self._steps.latency.step.histogram(),
            queue_latency=self._steps.latency.queue.histogram(),
            deaths_in_steps=self._workers.num_deaths_in_steps,
            poisonous_requests=self._requests.num_poisonous,
            faults=self._guard.num_faults,
            requests_running=self._scheduler.num_running,
            requests_waiting=self._scheduler.num_waiting,
            requests_finished=self._requests.num_finished,
            preemptions=self._scheduler.num_preemptions,
            leases_held=len(self._records),
            slow_log=SlowLog.of(self._steps.latency.slow.last),
            kv=self._scheduler.kv_cache_manager.stats(),
            encoder=self._encoder_stats(),
        )

    def _encoder_stats(self) -> EncoderCacheStats:
        """Return the encoder cache's statistics, with bytes once a worker has measured an embedding."""
        stats, embedding_bytes = self._scheduler.encoder_cache_manager.stats(), self._group.embedding_bytes
        return msgspec.structs.replace(
            stats,
            bytes_used=stats.embeds_used * embedding_bytes,
            bytes_total=stats.embeds_total * embedding_bytes,
            step_bytes=self._scheduler.caches.encoder_budget.compute_budget * embedding_bytes,
        )

    def _publish(self) -> None:
        self._page.publish(self.stats)


def _listen_for_workers(
    run_dir: RunDir, engine_index: int, clock: Callable[[], float]
) -> Listener[received.FromWorker]:
    error = ServiceUnavailable(f"{BOUNDS_OF_ROLES.max_connections} workers are connected")
    refusal = to_worker.WorkerRefused(error_to_wire(error))
    address = run_dir.worker_address(engine_index)
    return Listener(address, received.FromWorker, BOUNDS_OF_ROLES, refusal=refusal, clock=clock)


def _kv_event_publisher(config: ServiceConfig, run_dir: RunDir, engine_index: int) -> KVEventPublisher | None:
    if not config.kv_events.enable_kv_cache_events:
        return None
    from mmcached.engine.server.kv_event_publisher import kv_event_publisher_from_config  # loads libzmq

    return kv_event_publisher_from_config(config, run_dir.path, engine_index)


def main(run_dir: Path, engine_index: int) -> int:
    """Run one engine of a run directory until SIGTERM; return the exit status, 1 after an error (see the log)."""
    directory = RunDir(run_dir)
    config = ServiceConfig.load(directory.config)
    stop = StopFlag()
    with (
        stop,
        exported_spans(config, str(RoleName("engine", engine_index))) as start_span,
        EngineServer(directory, config, engine_index, start_span=start_span) as engine,
    ):
        engine.wake_on(stop)
        try:
            while not stop.is_set:
                engine.poll(REST_S)
        except MmcachedError as error:
            log.error("the engine ends", code=error.code, reason=str(error))
            return 1
        except Exception as error:
            log.error("the engine ends", code=type(error).__name__, where=places(error))
            return 1
    return 0
