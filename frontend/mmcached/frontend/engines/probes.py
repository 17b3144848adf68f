"""The data path's test: an item goes into the ring, every engine leases it, every worker tells its checksum, leases
return.

One probe is one item with random bytes. Who asks is answered when every ready engine has answered for all its workers
and no lease on the item is left, or with the reason why not when their time is over.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mmcached.frontend.caches.item_cache import OutgoingItem
from mmcached.frontend.engines.engine_connections import EngineConnection, EngineConnections
from mmcached.frontend.engines.rounds import AnswerTo, EngineRounds
from mmcached.shm import ObjectStoreWriter
from mmcached.shm.store import codec
from mmcached.wire.errors import CacheFull, ItemTooLarge, MmcachedError, ServiceUnavailable
from mmcached.wire.handle import Handle, LeaseId
from mmcached.wire.messages.client import Probed
from mmcached.wire.messages.engine import ProbeEngine
from mmcached.wire.messages.frontend import EngineProbed
from mmcached.wire.messages.parts import Inline
from mmcached.wire.sockets.channels import Frame

PROBE_BYTES = 1024
FIELD = "probe"


@dataclass(slots=True)
class _Item:
    checksum: str
    key: str | None
    num_engines: int
    num_workers: int = 0
    wrong: list[str] = field(default_factory=list)


class Probes(EngineRounds):
    """The probe that is under way, and who waits for the next; without a `store` its item travels inline.

    Args:
        needs_engine: a service whose engines are away does not work; one that has none to reach says so, and does.
    """

    def __init__(
        self, connections: EngineConnections, store: ObjectStoreWriter | None, max_per_peer: int, *, needs_engine: bool
    ) -> None:
        super().__init__(connections, max_per_peer)
        self._store = store
        self._needs_engine = needs_engine
        self._item: _Item | None = None

    def use(self, store: ObjectStoreWriter) -> None:
        self._store = store

    def start(self, peer: bytes, request_id: int, timeout_s: float, now: float) -> None:
        """Take a question.

        Raises:
            ServiceUnavailable: no engine is ready, or too many questions of this connection wait.
        """
        self._ready_engines()
        self.ask(peer, request_id, timeout_s, now)

    def answered(self, connection: EngineConnection, message: EngineProbed) -> None:
        """Take an engine's answer; a late one, or a second, changes nothing."""
        item = self._item
        if not self._has_answered(connection, message.token) or item is None:
            return
        item.num_workers += len(message.checksums)
        if not message.checksums:
            item.wrong.append(f"engine {connection.index} lacks a worker")
        for rank, checksum in enumerate(message.checksums):
            if checksum != item.checksum:
                item.wrong.append(f"worker {rank} of engine {connection.index} read other bytes than were written")

    def _begin(self, token: int, now: float) -> Sequence[EngineConnection]:
        connections = self._ready_engines()
        data = secrets.token_bytes(PROBE_BYTES)
        routed, key = self._place(data)
        self._item = _Item(hashlib.blake2b(data, digest_size=16).hexdigest(), key, len(connections))
        for connection in connections:
            self._send(connection, token, routed)
        return connections

    def _outcome(self, missing: Sequence[EngineConnection]) -> AnswerTo | MmcachedError | None:
        item = self._item
        if item is None:
            return None
        if item.wrong:
            return ServiceUnavailable("; ".join(item.wrong))
        gone = next((connection for connection in missing if self._is_gone(connection)), None)
        if gone is not None:
            return ServiceUnavailable(f"engine {gone.index} died while it was probed")
        if missing or self._is_leased(item):
            return None
        num_engines, num_workers = item.num_engines, item.num_workers
        return lambda request_id: Probed(request_id, num_engines, num_workers)

    def _waits_for(self) -> str:
        for connection in self._missing.values():
            return f"probe of engine {connection.index}"
        return "return of the probe's leases"

    def _end(self) -> None:
        item, self._item = self._item, None
        if item is not None and item.key is not None and self._store is not None:
            self._store.discard(item.key)

    def _ready_engines(self) -> list[EngineConnection]:
        connections = [connection for connection in self._connections if connection.is_ready]
        if self._needs_engine and not connections:
            raise ServiceUnavailable("no engine is ready")
        return connections

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

    def _send(self, connection: EngineConnection, token: int, item: OutgoingItem) -> None:
        def make(routed: Sequence[OutgoingItem], leases: Sequence[LeaseId | None]) -> tuple[ProbeEngine, list[Frame]]:
            payload = routed[0].payload
            if isinstance(payload, Handle):
                return ProbeEngine(token, payload, leases[0]), []
            frames = payload or []
            return ProbeEngine(token, Inline(0, len(frames))), frames

        self._connections.send_with_leases(connection, [item], make)

    def _is_leased(self, item: _Item) -> bool:
        if self._store is None or item.key is None:
            return False
        handle = self._store.find(item.key)
        return handle is not None and self._store.ring.is_leased(handle)
