"""Probes the data path periodically, without ever waiting for the answer.

    probe ──> answered: ready           again after READY_INTERVAL_S
       └──> failed, lost, or late       again after RETRY_INTERVAL_S; sets `not_ready_since`

For the supervisor, whose loop must not wait. A probe may take as long as a step, so a service that is only slow is
ready here, even if `readiness.probe` times out. Its connection stays open, so that other clients cannot take its place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from mmcached.cli.watch.readiness import verdict
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ChannelFull, RemoteProtocolError
from mmcached.wire.messages.client import Failed, Probed, ToClient
from mmcached.wire.messages.frontend import Probe
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.dialer import Dialer

READY_INTERVAL_S = 10.0
RETRY_INTERVAL_S = 0.1
SLACK_S = 1.0
"""Additional wait for an answer beyond its deadline."""


class ReadinessWatch(Closeable):
    """One probe at a time. Call `look` in every turn of a loop.

    Attributes:
        is_ready: Result of the last finished probe.
        not_ready_since: Monotonic seconds; None while it is ready.
        engine_not_ready_since: The same for each engine that the last probe has not reached, by index.
        reason: Result of the last finished probe, as text.
    """

    def __init__(self, directory: RunDir, config: ServiceConfig) -> None:
        self.is_ready = False
        self.not_ready_since: float | None = None
        self.engine_not_ready_since: dict[int, float] = {}
        self._engines = frozenset(range(config.num_engines))
        self.reason = "the frontend has not answered a probe yet"
        self._timeout_s = config.step_timeout_s
        self._next_ask = 0.0
        self._asked_at: float | None = None
        self._number = 0
        self._dialer: Dialer[ToClient] = Dialer(directory.client_address, ToClient)
        self._num_losses = 0

    def look(self, now: float) -> None:
        """Take an answer if there is one, and send a probe if it is time."""
        self._take_answers(now)
        if self._num_losses != self._dialer.num_losses:
            self._num_losses = self._dialer.num_losses
            self._fail("the frontend has closed the connection", now)
        if self._asked_at is not None and now - self._asked_at > self._timeout_s + SLACK_S:
            self._fail(f"no answer to a probe within {self._timeout_s} s", now)
        if self._asked_at is None and now >= self._next_ask:
            self._number += 1
            with contextlib.suppress(ChannelFull):
                self._dialer.send(Probe(self._number, self._timeout_s))
            self._asked_at = now

    @property
    def is_at_rest(self) -> bool:
        """Whether all engines are ready, and no probe is under way."""
        return self.are_all_ready and self._asked_at is None

    @property
    def are_all_ready(self) -> bool:
        """Whether the last probe has reached every engine."""
        return self.is_ready and not self.engine_not_ready_since

    def forgive(self, engines: Iterable[int] = ()) -> None:
        """Restart the time in which the service, and these engines, are not ready, at the next failed probe."""
        self.not_ready_since = None
        for engine in engines:
            self.engine_not_ready_since.pop(engine, None)

    def close(self) -> None:
        self._dialer.close()

    def _take_answers(self, now: float) -> None:
        while True:
            try:
                received = self._dialer.try_receive()
            except RemoteProtocolError as error:
                self._fail(str(error), now)
                continue
            if received is None:
                return
            match received[0]:
                case Probed(request_id=self._number) | Failed(request_id=self._number) as answer:
                    found = verdict(answer)
                    if not found.ready:
                        self._fail(found.reason, now)
                    elif isinstance(answer, Probed):
                        self._note(frozenset(answer.engines))
                        self.is_ready, self.not_ready_since, self._asked_at = True, None, None
                        self.reason = found.reason
                        self._next_ask = now + (READY_INTERVAL_S if self.are_all_ready else RETRY_INTERVAL_S)
                case Failed(request_id=None) as refusal:  # a refused connection, which the frontend is about to close
                    self._fail(verdict(refusal).reason, now)
                case _:
                    pass  # an answer to an earlier probe

    def _fail(self, reason: str, now: float) -> None:
        if self._asked_at is None:
            return
        self.is_ready, self.reason = False, reason
        if self.not_ready_since is None:
            self.not_ready_since = self._asked_at
        self._note(frozenset())
        self._asked_at = None
        self._next_ask = now + RETRY_INTERVAL_S

    def _note(self, engines: frozenset[int]) -> None:
        """Record the engines that a probe has reached; all others are not ready."""
        asked_at = self._asked_at or 0.0
        since = self.engine_not_ready_since
        self.engine_not_ready_since = {index: since.get(index, asked_at) for index in self._engines - engines}
