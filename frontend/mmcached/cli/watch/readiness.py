"""Finds out whether the service works, with a bounded probe of the data path, and why not.

    not ready, in this order      draining  ·  the probe fails, is wrong, or is not answered in time
    the reason                    known problems of each role, then the probe's error

Readiness is the probe's result alone. States of processes and ages of heartbeats only explain it: a live process may be
stuck, and a silent one may be in a long step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from mmcached.cli.watch.service_status import Readiness, ServiceView, Snapshots, role_statuses
from mmcached.shm.segment.ring_notes import missing_names
from mmcached.wire.errors import DeadlineExceeded, MmcachedError, RemoteProtocolError, error_from_wire
from mmcached.wire.messages.client import Failed, Probed, ToClient
from mmcached.wire.messages.frontend import Probe
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.dialer import Dialer

KEEP_S = 1.0
"""How long a result is reused, so that many callers cause one probe."""
GRACE_S = 0.75
"""Additional wait beyond the probe's own deadline, so that the frontend can name the engine that did not answer."""
DELETED = "{} was deleted from /dev/shm while the service runs: clients that come now get copies; restart the service"


class ReadinessCheck:
    """Probes on behalf of all callers, from any thread."""

    def __init__(
        self,
        look: Callable[[], ServiceView],
        read_page: Callable[[], Snapshots],
        *,
        ask: Callable[[Path, float], Readiness] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._read_page = read_page
        self._ask = ask or probe
        self._clock = clock
        self._timeout_s = look().config.probe_timeout_s
        self._asking = threading.Lock()
        self._last: tuple[float, Readiness] | None = None

    @property
    def deadline_s(self) -> float:
        """The longest duration of `check`."""
        return 2 * (self._timeout_s + GRACE_S)

    def check(self) -> Readiness:
        """Return whether the service works, from a probe at most one second old."""
        view = self._look()
        if view.is_draining:
            return Readiness(False, "draining")
        # One caller probes, the others wait for its result. The lock is released within the probe's deadline.
        if not self._asking.acquire(timeout=self.deadline_s / 2):
            return Readiness(False, "the last probe has not come to an end")
        try:
            if self._last is None or self._clock() - self._last[0] >= KEEP_S:
                found = self._ask(view.run_dir, self._timeout_s)
                if not found.ready:
                    found = Readiness(False, self._explain(found.reason))
                self._last = (self._clock(), found)
            asked, found = self._last
            return Readiness(found.ready, found.reason, round(self._clock() - asked, 3))
        finally:
            self._asking.release()

    def _explain(self, failure: str) -> str:
        try:
            complaints = [role.complaint for role in role_statuses(self._look(), self._read_page())]
        except MmcachedError as error:
            complaints = [str(error)]
        return "; ".join([*filter(None, complaints), failure])


def probe(run_dir: Path, timeout_s: float) -> Readiness:
    """Send one item through ring, engines and workers, and return the result within `timeout_s`.

    Each probe has a connection of its own, so that answers to earlier probes are not mistaken for its own.
    """
    directory = RunDir(run_dir)
    if not directory.is_served():
        return Readiness(False, "the frontend does not listen at its socket")
    with Dialer[ToClient](directory.client_address, ToClient) as dialer:
        dialer.send(Probe(1, timeout_s))
        try:
            answer, _ = dialer.receive(timeout_s + GRACE_S)
        except DeadlineExceeded:
            return Readiness(False, str(DeadlineExceeded("probe of the frontend", timeout_s)))
        except RemoteProtocolError as error:
            return Readiness(False, str(error))
    found = verdict(answer)
    if found.ready and (missing := missing_names(run_dir)):
        return Readiness(True, f"{found.reason}; {DELETED.format(missing[0])}")
    return found


def verdict(answer: ToClient) -> Readiness:
    match answer:
        case Probed(engines=[]):  # without an engine that it needs, a frontend answers `Failed`
            return Readiness(True, "the frontend answered the probe; it is a store, with no engine to reach")
        case Probed(engines=engines, num_workers=workers, faults=faults) if workers:
            answered = f"{len(engines)} engine(s) and {workers} worker(s) answered the probe"
            return Readiness(True, "; ".join([answered, *faults]))
        case Probed():
            return Readiness(False, "no engine with workers took part in the probe")
        case Failed():
            return Readiness(False, str(error_from_wire(answer.error)))
        case _:
            return Readiness(False, f"the probe was answered with {type(answer).__name__}")
