"""Test of the data path: an engine leases a stored item, every worker reports its checksum, the leases return.

    question ──> one probe per ready engine ──> each succeeds, fails or times out ──> answer

One probe is one item with random bytes. The answer names the engines whose workers were all right and left no lease, or
the reason if there are none. An engine that hangs does not delay the answer about the others beyond the deadline.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from mmcached.frontend.rounds import AnswerTo, Rounds, check_room
from mmcached.gateway.caches.item_records import ItemRecords
from mmcached.gateway.engines.engine_connections import EngineConnection, EngineConnections
from mmcached.shm.store import codec
from mmcached.wire.errors import ErrorInfo, MmcachedError, ServiceUnavailable, error_to_wire
from mmcached.wire.handle import Handle
from mmcached.wire.messages.client import Failed, Probed, ToClient
from mmcached.wire.messages.engine import ProbeEngine
from mmcached.wire.messages.frontend_from_engines import EngineProbed
from mmcached.wire.messages.parts import Inline, StoredItem

PROBE_BYTES = 1024
FIELD = "probe"


@dataclass(slots=True)
class _Question:
    """One client's question with the answers so far."""

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
    """The open questions, and the probes of each engine; without a ring, items are sent inline."""

    def __init__(self, connections: EngineConnections, items: ItemRecords, max_per_peer: int) -> None:
        self._connections = connections
        self._items = items
        self._max_per_peer = max_per_peer
        self._of_engine: dict[int, _EngineProbes] = {}  # by incarnation
        self._open: dict[int, _Question] = {}
        self._num_of_peer: Counter[bytes] = Counter()
        self._last_number = 0

    def start(self, peer: bytes, request_id: int, timeout_s: float, now: float) -> None:
        """Add a client's question.

        Raises:
            ServiceUnavailable: No engine is ready, or too many questions of this connection wait.
        """
        ready = self._connections.ready()
        if not ready:
            raise ServiceUnavailable("no engine is ready")
        check_room(self._num_of_peer[peer], self._max_per_peer)
        self._num_of_peer[peer] += 1
        self._last_number += 1
        self._open[self._last_number] = _Question(peer, request_id, len(ready))
        for connection in ready:
            if connection.incarnation not in self._of_engine:
                probes = _EngineProbes(self._connections, connection, self._items, self._max_per_peer)
                self._of_engine[connection.incarnation] = probes
            self._of_engine[connection.incarnation].ask(peer, self._last_number, timeout_s, now)

    def answered(self, connection: EngineConnection, message: EngineProbed) -> None:
        """Record an engine's answer; a late or repeated one changes nothing."""
        if connection.incarnation in self._of_engine:
            self._of_engine[connection.incarnation].answered(message)

    @property
    def is_idle(self) -> bool:
        """Whether no client waits for an answer."""
        return not self._open

    def take_finished(self, now: float) -> list[tuple[bytes, ToClient]]:
        """Return the connections with a finished answer, and the answers."""
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
    key: str
    place: Handle | None
    has_answer: bool = False
    num_workers: int = 0
    wrong: list[str] = field(default_factory=list)


class _EngineProbes(Rounds):
    """The current probe of one engine, and the questions that wait for the next."""

    def __init__(
        self,
        connections: EngineConnections,
        connection: EngineConnection,
        items: ItemRecords,
        max_per_peer: int,
    ) -> None:
        super().__init__(max_per_peer)
        self._connections = connections
        self._connection = connection
        self._items = items
        self._item: _Item | None = None
        self._token = 0

    def answered(self, message: EngineProbed) -> None:
        connection, item = self._connection, self._item
        if item is None or item.has_answer or message.token != self._token:
            return
        item.has_answer = True
        item.num_workers += len(message.checksums)
        if not message.checksums:
            item.wrong.append(f"engine {connection.index} lacks a worker")
        for rank, checksum in enumerate(message.checksums):
            if checksum != item.checksum:
                item.wrong.append(f"worker {rank} of engine {connection.index} read other bytes than were written")

    def _begin(self, now: float) -> None:
        if self._is_gone():
            raise self._death()
        data = secrets.token_bytes(PROBE_BYTES)
        key, encoded = f"probe {secrets.token_hex(8)}", codec.encode({FIELD: np.frombuffer(data, np.uint8)})
        place = self._items.put(key, encoded, 0)  # without room: inline, like any other item
        if place is not None:
            self._items.pin(place)  # until it is dropped
        self._item = _Item(hashlib.blake2b(data, digest_size=16).hexdigest(), key, place)
        frames = [] if place is not None else encoded.frames()
        payload = Inline(0, len(frames)) if place is None else StoredItem(place.token)
        self._token += 1
        self._connections.send(self._connection, ProbeEngine(self._token, payload), frames)

    def _outcome(self) -> AnswerTo | MmcachedError | None:
        item = self._item
        if item is None:
            return None
        if item.wrong:
            return ServiceUnavailable("; ".join(item.wrong))
        if not item.has_answer and self._is_gone():
            return self._death()
        if not item.has_answer or self._is_leased(item):
            return None
        engines, num_workers = [self._connection.index], item.num_workers
        return lambda request_id: Probed(request_id, engines, num_workers, [])

    def _waits_for(self) -> str:
        is_answered = self._item is not None and self._item.has_answer
        return "return of the probe's leases" if is_answered else f"probe of engine {self._connection.index}"

    def _end(self) -> None:
        item, self._item = self._item, None
        if item is not None and item.place is not None:
            self._items.drop(item.key)

    def _is_gone(self) -> bool:
        return self._connections.get(self._connection.incarnation) is None

    def _death(self) -> ServiceUnavailable:
        return ServiceUnavailable(f"engine {self._connection.index} died while it was probed")

    def _is_leased(self, item: _Item) -> bool:
        return item.place is not None and self._items.is_leased(item.place)
