"""The data path's test: an item goes into the ring, an engine leases it, every worker tells its checksum, the lease
returns.

    question ──> a probe of each ready engine ──> each has gone well, or has not, by the deadline ──> answer

One probe is one item with random bytes. Who asks is answered with the engines of which all workers were right and no
lease is left; with the reason if there are none. An engine that hangs keeps nobody from hearing that others work.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mmcached.frontend.caches.item_cache import OutgoingItem
from mmcached.frontend.engines.engine_connections import EngineConnection, EngineConnections
from mmcached.frontend.engines.rounds import AnswerTo, EngineRounds, check_room
from mmcached.shm import ObjectStoreWriter
from mmcached.shm.store import codec
from mmcached.wire.errors import CacheFull, ErrorInfo, ItemTooLarge, MmcachedError, ServiceUnavailable, error_to_wire
from mmcached.wire.handle import Handle, LeaseId
from mmcached.wire.messages.client import Failed, Probed, ToClient
from mmcached.wire.messages.engine import ProbeEngine
from mmcached.wire.messages.frontend import EngineProbed
from mmcached.wire.messages.parts import Inline
from mmcached.wire.sockets.frames import Frame

PROBE_BYTES = 1024
FIELD = "probe"


@dataclass(slots=True)
class _Question:
    """One question of a client, and what has come of it so far."""

    peer: bytes
    request_id: int
    num_missing: int
    engines: list[int] = field(default_factory=list)
    num_workers: int = 0
    faults: list[ErrorInfo] = field(default_factory=list)

    def take(self, answer: ToClient) -> None:
        self.num_missing -= 1
        match answer:
            case Probed():
                self.engines += answer.engines
                self.num_workers += answer.num_workers
            case Failed():
                self.faults.append(answer.error)

    def answer(self) -> ToClient:
        reasons = [fault.message for fault in self.faults]
        if self.engines or not self.faults:
            return Probed(self.request_id, sorted(self.engines), self.num_workers, reasons)
        only = self.faults[0] if len(self.faults) == 1 else error_to_wire(ServiceUnavailable("; ".join(reasons)))
        return Failed(self.request_id, only)


class Probes:
    """The questions that are open, and the probes of each engine; without a `store` their items travel inline.

    Args:
        needs_engine: a service whose engines are away does not work; one that has none to reach says so, and does.
    """

    def __init__(
        self, connections: EngineConnections, store: ObjectStoreWriter | None, max_per_peer: int, *, needs_engine: bool
    ) -> None:
        self._connections = connections
        self._store = store
        self._max_per_peer = max_per_peer
        self._needs_engine = needs_engine
        self._of_engine: dict[int, _EngineProbes] = {}  # by incarnation
        self._open: dict[int, _Question] = {}
        self._num_of_peer: Counter[bytes] = Counter()
        self._last_number = 0

    def use(self, store: ObjectStoreWriter) -> None:
        self._store = store
        for probes in self._of_engine.values():
            probes.use(store)

    def start(self, peer: bytes, request_id: int, timeout_s: float, now: float) -> None:
        """Take a question.

        Raises:
            ServiceUnavailable: no engine is ready, or too many questions of this connection wait.
        """
        ready = self._connections.ready()
        if self._needs_engine and not ready:
            raise ServiceUnavailable("no engine is ready")
        check_room(self._num_of_peer[peer], self._max_per_peer)
        self._num_of_peer[peer] += 1
        self._last_number += 1
        self._open[self._last_number] = _Question(peer, request_id, len(ready))
        for connection in ready:
            if connection.incarnation not in self._of_engine:
                probes = _EngineProbes(self._connections, connection, self._store, self._max_per_peer)
                self._of_engine[connection.incarnation] = probes
            self._of_engine[connection.incarnation].ask(peer, self._last_number, timeout_s, now)

    def answered(self, connection: EngineConnection, message: EngineProbed) -> None:
        """Take an engine's answer; a late one, or a second, changes nothing."""
        if connection.incarnation in self._of_engine:
            self._of_engine[connection.incarnation].answered(message)

    @property
    def is_idle(self) -> bool:
        """Nobody waits for an answer."""
        return not self._open

    def take_finished(self, now: float) -> list[tuple[bytes, ToClient]]:
        """Return the connections that are answered now, and with what."""
        for incarnation, probes in list(self._of_engine.items()):
            for _, answer in probes.take_finished(now):
                if isinstance(answer, Probed | Failed) and answer.request_id is not None:
                    self._open[answer.request_id].take(answer)
            if probes.is_idle and self._connections.get(incarnation) is None:
                del self._of_engine[incarnation]
        over = [number for number, question in self._open.items() if not question.num_missing]
        finished = [self._open.pop(number) for number in over]
        self._num_of_peer -= Counter(question.peer for question in finished)  # which drops those of 0
        return [(question.peer, question.answer()) for question in finished]


@dataclass(slots=True)
class _Item:
    checksum: str
    key: str | None
    num_workers: int = 0
    wrong: list[str] = field(default_factory=list)


class _EngineProbes(EngineRounds):
    """The probe of one engine that is under way, and who waits for the next."""

    def __init__(
        self,
        connections: EngineConnections,
        connection: EngineConnection,
        store: ObjectStoreWriter | None,
        max_per_peer: int,
    ) -> None:
        super().__init__(connections, max_per_peer)
        self._connection = connection
        self._store = store
        self._item: _Item | None = None

    def use(self, store: ObjectStoreWriter) -> None:
        self._store = store

    def answered(self, message: EngineProbed) -> None:
        connection, item = self._connection, self._item
        if not self._has_answered(connection, message.token) or item is None:
            return
        item.num_workers += len(message.checksums)
        if not message.checksums:
            item.wrong.append(f"engine {connection.index} lacks a worker")
        for rank, checksum in enumerate(message.checksums):
            if checksum != item.checksum:
                item.wrong.append(f"worker {rank} of engine {connection.index} read other bytes than were written")

    def _begin(self, token: int, now: float) -> Sequence[EngineConnection]:
        if self._is_gone(self._connection):
            raise self._death()
        data = secrets.token_bytes(PROBE_BYTES)
        routed, key = self._place(data)
        self._item = _Item(hashlib.blake2b(data, digest_size=16).hexdigest(), key)
        self._send(token, routed)
        return [self._connection]

    def _outcome(self, missing: Sequence[EngineConnection]) -> AnswerTo | MmcachedError | None:
        item = self._item
        if item is None:
            return None
        if item.wrong:
            return ServiceUnavailable("; ".join(item.wrong))
        if missing and self._is_gone(self._connection):
            return self._death()
        if missing or self._is_leased(item):
            return None
        engines, num_workers = [self._connection.index], item.num_workers
        return lambda request_id: Probed(request_id, engines, num_workers, [])

    def _waits_for(self) -> str:
        return f"probe of engine {self._connection.index}" if self._missing else "return of the probe's leases"

    def _end(self) -> None:
        item, self._item = self._item, None
        if item is not None and item.key is not None and self._store is not None:
            self._store.discard(item.key)

    def _death(self) -> ServiceUnavailable:
        return ServiceUnavailable(f"engine {self._connection.index} died while it was probed")

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

    def _send(self, token: int, item: OutgoingItem) -> None:
        def make(routed: Sequence[OutgoingItem], leases: Sequence[LeaseId | None]) -> tuple[ProbeEngine, list[Frame]]:
            payload = routed[0].payload
            if isinstance(payload, Handle):
                return ProbeEngine(token, payload, leases[0]), []
            frames = payload or []
            return ProbeEngine(token, Inline(0, len(frames))), frames

        self._connections.send_with_leases(self._connection, [item], make)

    def _is_leased(self, item: _Item) -> bool:
        if self._store is None or item.key is None:
            return False
        handle = self._store.find(item.key)
        return handle is not None and self._store.ring.is_leased(handle)
