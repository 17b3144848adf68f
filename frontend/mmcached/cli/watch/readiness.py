"""Whether the service really works, and why not: a bounded question to the data path, asked at most once a second.

    not ready, in this order      draining  ·  the probe fails, is wrong, or is not answered in time
    the reason                    what every role is known to suffer from, then what the probe said

Readiness is the probe's answer alone. States of processes and ages of heartbeats only explain it: a process that lives
may do nothing, and one that is silent may be in a long step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import zmq

from mmcached.cli.watch.service_status import Readiness, Snapshots, SupervisorView, role_statuses
from mmcached.wire.errors import (
    DeadlineExceeded,
    MmcachedError,
    RemoteProtocolError,
    ServiceUnavailable,
    error_from_wire,
)
from mmcached.wire.messages.client import Failed, Probed, ToClient
from mmcached.wire.messages.frontend import Probe
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.channels import DealerChannel

KEEP_S = 1.0
"""How long an answer is good for: however many ask, the data path is asked once in this time."""
GRACE_S = 0.25
"""How much longer than the probe's own deadline we wait, so that the frontend can say which engine did not answer."""


class ReadinessCheck:
    """Asks for everybody, from any thread; returns within the probe's deadline, the grace, and no more.

    Args:
        read_page: returns what the stats page says now.
        ask: sends one probe; tests put another data path here.
    """

    def __init__(
        self,
        view: SupervisorView,
        read_page: Callable[[], Snapshots],
        *,
        ask: Callable[[Path, float], Probed] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._view = view
        self._read_page = read_page
        self._ask = ask or probe
        self._clock = clock
        self._asking = threading.Lock()
        self._last: tuple[float, Readiness] | None = None

    @property
    def deadline_s(self) -> float:
        """The longest that `check` takes."""
        return 2 * (self._view.config.probe_timeout_s + GRACE_S)

    def check(self) -> Readiness:
        """Return whether the service works, as found out within the last second."""
        if self._view.is_draining:
            return Readiness(False, "draining")
        # One asks, the others wait for its answer. Whoever holds the lock lets go within the probe's deadline.
        if not self._asking.acquire(timeout=self.deadline_s / 2):
            return Readiness(False, "the last probe has not come to an end")
        try:
            if self._last is None or self._clock() - self._last[0] >= KEEP_S:
                found = self._probe()
                self._last = (self._clock(), found)
            asked, found = self._last
            return Readiness(found.ready, found.reason, round(self._clock() - asked, 3))
        finally:
            self._asking.release()

    def _probe(self) -> Readiness:
        timeout_s = self._view.config.probe_timeout_s
        try:
            answer = self._ask(self._view.run_dir, timeout_s)
        except MmcachedError as error:
            return Readiness(False, self._explain(str(error)))
        if not answer.num_engines or not answer.num_workers:
            return Readiness(False, self._explain("no engine with workers took part in the probe"))
        return Readiness(True, f"{answer.num_engines} engine(s) and {answer.num_workers} worker(s) answered the probe")

    def _explain(self, failure: str) -> str:
        try:
            complaints = [role.complaint for role in role_statuses(self._view, self._read_page())]
        except MmcachedError as error:
            complaints = [str(error)]
        return "; ".join([*filter(None, complaints), failure])


def probe(run_dir: Path, timeout_s: float) -> Probed:
    """Send one item through ring, engines and workers.

    On a connection of its own: nothing of a former question can answer it, and a frontend that does not read does not
    hold us up at the end, as it may hold up a `Client` that says goodbye.

    Raises:
        DeadlineExceeded: the frontend, or what it waits for, did not answer within `timeout_s`.
        MmcachedError: the data path is broken in the way that the text says.
    """
    directory = RunDir(run_dir)
    if not directory.is_served():
        raise ServiceUnavailable("the frontend does not listen at its socket")
    with (
        zmq.Context() as context,
        DealerChannel[ToClient](context, directory.client_address, ToClient) as channel,
    ):
        channel.socket.setsockopt(zmq.LINGER, 0)
        channel.send(Probe(1, timeout_s))
        try:
            answer, _ = channel.receive(timeout_s + GRACE_S)
        except DeadlineExceeded:
            raise DeadlineExceeded("probe of the frontend", timeout_s) from None
    match answer:
        case Probed():
            return answer
        case Failed():
            raise error_from_wire(answer.error)
        case _:
            raise RemoteProtocolError(f"the probe was answered with {type(answer).__name__}")
