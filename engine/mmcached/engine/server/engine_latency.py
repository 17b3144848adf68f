"""Measures how long requests wait for their first step, and how long steps take.

    request arrives ──queue──> its first step is scheduled      a plan is sent ──step──> its step is committed

A request that starts over has been scheduled before: it is counted once. Knows nothing of sockets.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from mmcached.engine.scheduling.step import ScheduledStep
from mmcached.wire.latency import Latency
from mmcached.wire.slow_log import SlowCalls

log = structlog.get_logger("mmcached.engine")


class EngineLatency:
    """The latencies of one engine.

    Args:
        clock: monotonic seconds.
        slow_ms: a step that takes longer is slow; 0: none is.
    """

    def __init__(self, clock: Callable[[], float], *, slow_ms: float) -> None:
        self.slow = SlowCalls(slow_ms, log.warning)
        self.queue = Latency()
        self.step = Latency()
        self._clock = clock
        self._arrived: dict[int, float] = {}
        self._started = 0.0

    def arrive(self, request_id: int) -> None:
        """Take note of a request that waits now."""
        self._arrived[request_id] = self._clock()

    def forget(self, request_id: int) -> None:
        """Count nothing of a request that has ended before it was scheduled."""
        self._arrived.pop(request_id, None)

    def start(self, step: ScheduledStep) -> None:
        """Take note of a step whose plan is about to be sent."""
        self._started = self._clock()
        if not self._arrived:
            return
        for request in step.requests():
            if (arrived := self._arrived.pop(request.request_id, None)) is not None:
                self.queue.add(self._started - arrived)

    def commit(self, step: ScheduledStep) -> None:
        """Count the step that was started last."""
        took_s = self._clock() - self._started
        self.step.add(took_s)
        about = {"step": step.step_id, "chunks": len(step.chunks), "encoded": len(step.encode)}
        self.slow.note("step", took_s, step.step_id, **about)
