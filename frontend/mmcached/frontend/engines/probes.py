"""The data path's test: an item goes into the ring, every engine leases it, every worker tells its checksum, leases
return.

One probe is one item with random bytes, for all who have asked since the one before. They are answered when every ready
engine has answered for all its workers and no lease on the item is left, or with the reason why not when their time is
over.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mmcached.frontend.caches.item_cache import OutgoingItem
from mmcached.frontend.engines.askers import Asker, Askers
from mmcached.frontend.engines.engine_gate import EngineGate
from mmcached.frontend.engines.engine_links import EngineLink
from mmcached.shm import ObjectStoreWriter
from mmcached.shm.store import codec
from mmcached.wire.errors import CacheFull, DeadlineExceeded, ItemTooLarge, MmcachedError, ServiceUnavailable
from mmcached.wire.handle import Handle, LeaseId
from mmcached.wire.messages.client import Probed
from mmcached.wire.messages.engine import ProbeEngine
from mmcached.wire.messages.frontend import EngineProbed
from mmcached.wire.messages.parts import Inline
from mmcached.wire.sockets.channels import Frame

PROBE_BYTES = 1024
FIELD = "probe"


@dataclass(slots=True)
class _Round:
    """One item, and the engines that have not told what they read."""

    checksum: str
    key: str | None
    missing: dict[int, EngineLink]
    num_engines: int
    num_workers: int = 0
    wrong: list[str] = field(default_factory=list)


class Probes:
    """The probe that is under way, and who waits for the next.

    Args:
        store: of the ring; None when every item travels inline.
        max_per_peer: questions of one connection that may wait.
    """

    def __init__(self, gate: EngineGate, store: ObjectStoreWriter | None, max_per_peer: int) -> None:
        self._gate = gate
        self._store = store
        self._askers = Askers(max_per_peer)
        self._round: _Round | None = None
        self._token = 0

    def use(self, store: ObjectStoreWriter) -> None:
        """There is a ring now."""
        self._store = store

    def start(self, peer: bytes, request_id: int, timeout_s: float, now: float) -> None:
        """Take a question; unless a probe is under way, send a fresh item to every ready engine.

        Raises:
            ServiceUnavailable: no engine is ready, or too many questions of this connection wait.
        """
        if not any(link.is_ready for link in self._gate.links):
            raise ServiceUnavailable("no engine is ready")
        self._askers.add(Asker(peer, request_id, now + timeout_s, timeout_s))

    def answered(self, link: EngineLink, message: EngineProbed) -> None:
        """Take an engine's answer; a late one, or a second, changes nothing."""
        probe = self._round
        if probe is None or message.token != self._token or probe.missing.pop(link.incarnation, None) is None:
            return
        probe.num_workers += len(message.checksums)
        if not message.checksums:
            probe.wrong.append(f"engine {link.index} lacks a worker")
        for rank, checksum in enumerate(message.checksums):
            if checksum != probe.checksum:
                probe.wrong.append(f"worker {rank} of engine {link.index} read other bytes than were written")

    def take_finished(self, now: float) -> list[tuple[Asker, Probed | MmcachedError]]:
        """Return those who have an outcome; the next round begins if anybody waits for it."""
        finished: list[tuple[Asker, Probed | MmcachedError]] = []
        outcome = None if self._round is None else self._outcome(self._round)
        if self._round is not None and outcome is not None:
            finished += self._end(outcome)
        expired = self._askers.take_expired(now)
        finished += [(asker, DeadlineExceeded(self._waits_for(), asker.timeout_s)) for asker in expired]
        if self._round is not None and not self._askers.is_under_way:
            self._end(None)
        if self._askers.begin():
            try:
                self._begin()
            except MmcachedError as error:
                finished += self._end(error)
        return finished

    def _begin(self) -> None:
        links = [link for link in self._gate.links if link.is_ready]
        if not links:
            raise ServiceUnavailable("no engine is ready")
        data = secrets.token_bytes(PROBE_BYTES)
        item, key = self._place(data)
        checksum = hashlib.blake2b(data, digest_size=16).hexdigest()
        self._token += 1
        self._round = _Round(checksum, key, {link.incarnation: link for link in links}, len(links))
        for link in links:
            self._send(link, self._token, item)

    def _outcome(self, probe: _Round) -> tuple[int, int] | MmcachedError | None:
        """Return how many engines and workers have read the item right, or what is wrong; None: not known yet."""
        if probe.wrong:
            return ServiceUnavailable("; ".join(probe.wrong))
        gone = [link.index for link in probe.missing.values() if self._gate.links.get(link.incarnation) is None]
        if gone:
            return ServiceUnavailable(f"engine {gone[0]} died while it was probed")
        if probe.missing or self._is_leased(probe):
            return None
        return probe.num_engines, probe.num_workers

    def _waits_for(self) -> str:
        if self._round is None or not self._round.missing:
            return "return of the probe's leases"
        return f"probe of engine {next(iter(self._round.missing.values())).index}"

    def _end(self, outcome: tuple[int, int] | MmcachedError | None) -> list[tuple[Asker, Probed | MmcachedError]]:
        """End the round, remove its item, and return whom its outcome answers."""
        probe, self._round = self._round, None
        if probe is not None and probe.key is not None and self._store is not None:
            self._store.discard(probe.key)
        asked = self._askers.finish()
        if isinstance(outcome, tuple):
            return [(asker, Probed(asker.request_id, *outcome)) for asker in asked]
        return [] if outcome is None else [(asker, outcome) for asker in asked]

    def _place(self, data: bytes) -> tuple[OutgoingItem, str | None]:
        """Put the item into the ring if there is one with room; else it travels inline."""
        record: codec.Record = {FIELD: np.frombuffer(data, np.uint8)}
        key = f"probe {secrets.token_hex(8)}"
        if self._store is not None:
            try:
                handle = self._store.put(key, record)
            except (CacheFull, ItemTooLarge):
                pass  # full of leases: the item travels inline, like any other
            else:
                return OutgoingItem(key, handle.nbytes, 0, handle), key
        return OutgoingItem(key, len(data), 0, codec.encode(record).frames()), None

    def _send(self, link: EngineLink, token: int, item: OutgoingItem) -> None:
        def make(routed: Sequence[OutgoingItem], leases: Sequence[LeaseId | None]) -> tuple[ProbeEngine, list[Frame]]:
            payload = routed[0].payload
            if isinstance(payload, Handle):
                return ProbeEngine(token, payload, leases[0]), []
            frames = payload or []
            return ProbeEngine(token, Inline(0, len(frames))), frames

        self._gate.send_with_leases(link, [item], make)

    def _is_leased(self, probe: _Round) -> bool:
        if self._store is None or probe.key is None:
            return False
        handle = self._store.find(probe.key)
        return handle is not None and self._store.ring.is_leased(handle)
