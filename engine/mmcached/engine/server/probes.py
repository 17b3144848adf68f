"""Probes pass a small item to every worker of this engine, and gather its checksums.

A probe's lease is held like a request's, under the probe's negative number, with one outstanding read for each worker.
Invariant: at most `MAX_OPEN` probes are remembered; the oldest is forgotten first.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.engine.server.leases import HeldLeases
from mmcached.engine.server.worker_group import WorkerGroup
from mmcached.wire.errors import ChannelFull, PeerGone
from mmcached.wire.handle import Handle
from mmcached.wire.messages.engine import ProbeEngine, WorkerProbed
from mmcached.wire.messages.worker import ProbeWorker
from mmcached.wire.sockets.frames import Frame

MAX_OPEN = 16


class EngineProbes:
    """The probes that are under way."""

    def __init__(self, engine_incarnation: int, group: WorkerGroup, leases: HeldLeases) -> None:
        self._engine_incarnation = engine_incarnation
        self._group = group
        self._leases = leases
        self._checksums: dict[int, dict[int, str]] = {}
        self._seqs: dict[int, int] = {}

    def start(self, probe: ProbeEngine, payload: Sequence[Frame]) -> bool:
        """Pass a probe on to every worker; return False if one is missing: then it has no answer."""
        name = -probe.token
        is_answerable = self._group.are_all_attached  # else its lease goes back at once
        epochs = self._group.epochs if is_answerable else []
        # What a dead worker never answered: its death has given the lease back.
        self._seqs = {token: seq for token, seq in self._seqs.items() if seq in self._leases}
        if isinstance(probe.payload, Handle) and probe.lease is not None:
            self._leases.hold(name, probe.payload, probe.lease)
            self._leases.reading([probe.lease.seq], epochs, name)
            self._leases.end_request(name)
            self._seqs[probe.token] = probe.lease.seq
        if not is_answerable:
            return False
        self._checksums[probe.token] = {}
        if len(self._checksums) > MAX_OPEN:
            del self._checksums[next(iter(self._checksums))]
        for link in self._group.in_rank_order():
            message = ProbeWorker(self._engine_incarnation, link.worker_epoch, probe.token, probe.payload)
            try:
                self._group.send(link, message, payload)
            except (PeerGone, ChannelFull):
                self._read_done(link.worker_epoch, probe.token)
                is_answerable = False
        if not is_answerable:
            del self._checksums[probe.token]
        return is_answerable

    def answered(self, message: WorkerProbed) -> list[str] | None:
        """Take a worker's answer; return all checksums, by rank, once every worker has answered."""
        self._read_done(message.worker_epoch, message.token)
        link = self._group.by_epoch(message.worker_epoch)
        checksums = self._checksums.get(message.token)
        if link is None or checksums is None:
            return None
        checksums[link.rank] = message.checksum
        if len(checksums) < len(self._group.epochs):
            return None
        del self._checksums[message.token]
        self._seqs.pop(message.token, None)
        return [checksums[rank] for rank in sorted(checksums)]

    def take_all(self) -> list[int]:
        """Return and forget the probes under way; their leases go back as the workers answer, or are certified dead."""
        tokens = list(self._checksums)
        self._checksums.clear()
        return tokens

    def _read_done(self, worker_epoch: int, token: int) -> None:
        seq = self._seqs.get(token)
        if seq is not None:
            self._leases.read_done(worker_epoch, -token, seq)
