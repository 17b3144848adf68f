"""Probes: pass a small item through every worker of this engine, and collect the checksums.

A probe's item is leased like a request's, under the probe's negative number, until every worker has answered.
Invariant: at most `MAX_OPEN` probes are open; the oldest is forgotten first.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.engine.server.held_records import HeldRecords
from mmcached.engine.server.worker_group import WorkerGroup
from mmcached.wire.errors import ChannelFull, PeerGone
from mmcached.wire.messages.engine import ProbeEngine, WorkerProbed
from mmcached.wire.messages.worker import ProbeWorker
from mmcached.wire.sockets.frames import Frame

MAX_OPEN = 16


class EngineProbes:
    def __init__(self, engine_incarnation: int, group: WorkerGroup, records: HeldRecords) -> None:
        self._engine_incarnation = engine_incarnation
        self._group = group
        self._records = records
        self._checksums: dict[int, dict[int, str]] = {}

    def start(self, probe: ProbeEngine, payload: Sequence[Frame]) -> bool:
        """Send a probe to every worker; return False if a worker or the item is missing."""
        if not self._group.are_all_attached or not self._records.lease_items(-probe.token, [probe.payload]):
            return False
        self._checksums[probe.token] = {}
        if len(self._checksums) > MAX_OPEN:
            self._forget(next(iter(self._checksums)))
        is_answerable = True
        for link in self._group.in_rank_order():
            message = ProbeWorker(self._engine_incarnation, link.worker_epoch, probe.token, probe.payload)
            try:
                self._group.send(link, message, payload)
            except (PeerGone, ChannelFull):
                is_answerable = False
        if not is_answerable:
            self._forget(probe.token)
        return is_answerable

    def answered(self, message: WorkerProbed) -> list[str] | None:
        """Record a worker's answer; return all checksums, by rank, once every worker has answered."""
        link = self._group.by_epoch(message.worker_epoch)
        checksums = self._checksums.get(message.token)
        if link is None or checksums is None:
            return None
        checksums[link.rank] = message.checksum
        if len(checksums) < len(self._group.epochs):
            return None
        self._forget(message.token)
        return [checksums[rank] for rank in sorted(checksums)]

    def take_all(self) -> list[int]:
        tokens = list(self._checksums)
        for token in tokens:
            self._forget(token)
        return tokens

    def _forget(self, token: int) -> None:
        del self._checksums[token]
        self._records.release_request(-token)
