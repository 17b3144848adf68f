"""Finds live roles that do no work: those whose heartbeat in the stats page has stopped. Does no I/O.

A role without a slot in the page yet is starting, and may take as long as a service may to start. A worker is silent in
a step, for as long as a step may take. Time in which the supervisor itself did not run, because the machine or all
processes were stopped, does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mmcached.cli.watch.service_status import Snapshots
from mmcached.wire.config import ServiceConfig
from mmcached.wire.process.turns import longest_rest_s
from mmcached.wire.stats import RoleName


class Watchdog:
    """The silence of each process so far; `interval_s` is the time between two calls of `overdue`."""

    def __init__(self, config: ServiceConfig) -> None:
        self.interval_s = longest_rest_s(config.limits)
        self._config = config
        self._silent_s: dict[tuple[RoleName, int], float] = {}
        self._last: float | None = None

    def overdue(
        self, pids: Mapping[RoleName, int], snapshots: Snapshots, now: float
    ) -> Iterator[tuple[RoleName, float]]:
        """Yield the roles that were silent for too long, with the seconds. To be called every `interval_s`.

        Args:
            pids: Pids of the live roles.
        """
        since_last = 0.0 if self._last is None else now - self._last
        self._last = now
        former, self._silent_s = self._silent_s, {}
        for name, pid in pids.items():
            snapshot = snapshots.get(name)
            has_come = snapshot is not None and snapshot.pid == pid
            silent_s = former.get((name, pid), 0.0) + min(since_last, 2 * self.interval_s)
            if has_come and snapshot is not None and snapshot.heartbeat_age_s <= since_last:
                silent_s = 0.0
            self._silent_s[name, pid] = silent_s
            if silent_s >= self._limit_s(name, has_come=has_come):
                yield name, silent_s

    def _limit_s(self, name: RoleName, *, has_come: bool) -> float:
        silence_s = self._config.limits.silence_timeout_s
        if not has_come:
            return max(silence_s, self._config.start_timeout_s)
        return max(silence_s, self._config.step_timeout_s) if name.kind == "worker" else silence_s
