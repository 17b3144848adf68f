"""The frontend process (P0): one per host, it serves the clients, and owns the ring with all records.

It manages no blocks and runs no model.

    clients ==> client.sock (wire.listener) ==> Frontend ──> store_service   records of clients
                                                   └───────> a gateway       generate, encode (see `mount`)

It has one loop. A turn handles a bounded share of the engines' messages, then of the clients', one message of each in a
round, then continues requests that are ready; deaths and deadlines are checked when due, under any load. No event ends
the loop: an invalid message is answered or logged, and an internal error ends only its request or message. The loop
never waits for an engine, a client or an image.
"""

from __future__ import annotations

import math
import select
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from mmcached.frontend.client_messages import ClientMessages
from mmcached.frontend.connections.listening import listen_for_clients
from mmcached.frontend.connections.rings import warn_of_small_shm
from mmcached.frontend.mount import FrontendParts, Mount
from mmcached.frontend.store.store_service import StoreService
from mmcached.shm import sweep
from mmcached.shm.segment.mapped import SHM_DIR
from mmcached.shm.segment.ring_notes import remove_note
from mmcached.shm.stats.page import StatsPageReader
from mmcached.shm.stats.publisher import StatsPublisher
from mmcached.shm.stats.service import service_stats
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages import client as to_client
from mmcached.wire.paths import RunDir
from mmcached.wire.process.signals import StopFlag
from mmcached.wire.process.spans import exported_spans
from mmcached.wire.process.turns import REST_S, Guard, longest_rest_s
from mmcached.wire.slow_log import SlowLog
from mmcached.wire.stats import FrontendStats, RoleName

if TYPE_CHECKING:
    from mmcached.wire.tracing import StartSpan

log = structlog.get_logger("mmcached.frontend")

CHECK_INTERVAL_S = 0.25
"""Seconds between checks of deaths and deadlines while requests are open, messages arrive, or records are read; at rest
a death closes a connection, which is an event."""


class Frontend(Closeable):
    """The clients' socket, the store, a gateway, and the loop. Call `poll` until `is_drained`, then `close`.

    Args:
        mount: Creates the gateway.
        start_span: Begins the span of a generation or embedding; None: no spans.

    Raises:
        OSError: A socket could not be bound.
    """

    def __init__(
        self,
        run_dir: RunDir,
        config: ServiceConfig,
        mount: Mount,
        *,
        clock: Callable[[], float] = time.monotonic,
        start_span: StartSpan | None = None,
    ) -> None:
        self._clock = clock
        self._guard = Guard()
        self._is_draining = False
        self._last_check = -math.inf
        self._is_at_rest = False
        self._rest_s = longest_rest_s(config.limits)
        with ExitStack() as stack:
            page = run_dir.stats_page  # missing if the frontend was started without a supervisor
            self._page = stack.enter_context(StatsPageReader(page)) if page.exists() else None
            self._channel = stack.enter_context(listen_for_clients(run_dir, config, clock))
            self.store = stack.enter_context(
                StoreService(config, channel=self._channel, clock=clock, home=run_dir.path)
            )
            self.gateway = mount(
                FrontendParts(
                    run_dir=run_dir,
                    config=config,
                    store=self.store,
                    send=self._channel.try_send,
                    clock=clock,
                    announce_encoder=self._announce_encoder,
                    start_span=start_span,
                )
            )
            stack.callback(self.gateway.close)
            self._closing = stack.pop_all()
        self._clients = ClientMessages(
            run_dir, config, self._channel, store=self.store, gateway=self.gateway, clock=clock
        )
        self._wakers: list[StopFlag] = []
        self._poller = select.poll()
        self._clients_fd = self._channel.fileno()
        for fd in (self._clients_fd, *self.gateway.descriptors):
            self._poller.register(fd, select.POLLIN)

    # ---- the loop

    def poll(self, timeout_s: float) -> None:
        """Take one turn, waiting up to `timeout_s` for an event."""
        has_more = self._channel.has_more or self.gateway.has_more or self.store.nurseries.has_work
        wait_s = 0.0
        if not has_more:
            next_due = min(self._next_check, self.store.second_level.next_deadline)
            wait_s = max(0.0, min(timeout_s, next_due - self._clock()))
        ready = {fd for fd, _ in self._poller.poll(math.ceil(wait_s * 1000))}
        has_come = bool(ready) or has_more
        if has_come and self._is_at_rest:  # count the readers' hits before new puts evict by them
            self._is_at_rest = False
            self._guard.call("what clients have found", self.store.records.poll_hits)
        # Idle parts are skipped, so that a turn for one store message is short.
        self.gateway.receive(ready, self._guard)
        if self._clients_fd in ready or self._channel.has_more:
            self._clients.serve(self._guard)
        self.store.go_on(self._guard)
        self.gateway.go_on(ready, self._guard)
        now = self._clock()
        if now >= self._next_check:
            self._check(now, has_come=has_come)
        self._answer_finished(now)

    def _check(self, now: float, *, has_come: bool) -> None:
        """Check deaths and deadlines. `has_come`: whether this turn had an event."""
        self._last_check = now
        num_queries = self.store.records.num_queries
        self._guard.call("look at the connections", self._channel.check, now)
        self._guard.call("look at the clients", self._clients.check)
        self.gateway.check(now, self._guard)
        self._guard.call("look at the store", self.store.check, now)
        # An open request, claim, probe or flush has a deadline.
        has_open = not (self.gateway.is_idle and self._clients.flushes.is_idle) or self.store.has_open
        self._is_at_rest = not (has_come or has_open) and self.store.records.num_queries == num_queries

    @property
    def _next_check(self) -> float:
        return self._last_check + (self._rest_s if self._is_at_rest else CHECK_INTERVAL_S)

    def wake_on(self, source: StopFlag) -> None:
        """End waits also when `source` becomes readable, until `drain`."""
        self._poller.register(source.fileno(), select.POLLIN)
        self._wakers.append(source)

    def drain(self) -> None:
        """Accept no new requests; open ones go on."""
        self._is_draining = True
        while self._wakers:
            self._poller.unregister(self._wakers.pop().fileno())
        self.gateway.drain()

    @property
    def is_drained(self) -> bool:
        return self._is_draining and not self.gateway.num_open

    def close(self) -> None:
        """Fail open requests, remove the ring, close the sockets."""
        self._closing.close()

    # ---- statistics and answers

    def stats(self) -> FrontendStats:
        own = FrontendStats(
            protocol_errors=self._clients.num_protocol_errors + self.store.num_protocol_errors,
            clients=self._clients.presence.num_alive,
            connections=len(self._channel),
            clients_refused=self._channel.num_refused,
            clients_disconnected=self._channel.num_disconnected,
            faults=self._guard.num_faults,
            store=self.store.stats(),
            slow_log=SlowLog.of(self.store.puts.slow.last),
            by_client=self.store.client_figures.stats(),
            by_tenant=self.store.records.saved.by_tenant(),
        )
        return self.gateway.stats(own)

    def _announce_encoder(self) -> None:
        self._clients.announce_encoder()

    def _answer_finished(self, now: float) -> None:
        if asked := self._clients.take_asked_for_stats():
            self._guard.call("statistics", self._answer_stats, asked)
        if not self._clients.flushes.is_idle:
            self._guard.call("flushes", self._answer_flushes, now)

    def _answer_stats(self, asked: list[tuple[bytes, int]]) -> None:
        snapshots = {} if self._page is None else self._page.read()
        stats = msgspec.to_builtins(service_stats(snapshots, self.stats(), self.gateway.ready_engines()))
        for peer, request_id in asked:
            self._channel.try_send(peer, to_client.Stats(request_id, stats))

    def _answer_flushes(self, now: float) -> None:
        for peer, answer in self._clients.flushes.take_finished(now):
            self._channel.try_send(peer, answer)


def main(run_dir: Path, mount: Mount) -> int:
    """Run the frontend of a run directory until SIGTERM, then drain; return the exit status."""
    directory = RunDir(run_dir)
    config = ServiceConfig.load(directory.config)
    stop = StopFlag()
    remove_note(run_dir, "items")  # left by a former version, whose items had a ring of their own
    for name in sweep():
        log.info("removed what a dead process left behind", name=name)
    warn_of_small_shm(config, shutil.disk_usage(SHM_DIR).total)
    page = StatsPublisher(directory.stats_page, RoleName("frontend"))
    with (
        stop,
        page,
        exported_spans(config, "frontend") as start_span,
        Frontend(directory, config, mount, start_span=start_span) as frontend,
    ):
        frontend.wake_on(stop)
        while not stop.is_set:
            frontend.poll(REST_S)
            page.publish_if_due(frontend.stats)
        frontend.drain()
        give_up = time.monotonic() + config.drain_timeout_s
        while not frontend.is_drained and time.monotonic() < give_up:
            frontend.poll(CHECK_INTERVAL_S)
            page.publish_if_due(frontend.stats)
        page.publish(frontend.stats)  # the supervisor logs the final statistics
    return 0
