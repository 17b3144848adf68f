"""The data path's test: an item goes into the ring, every engine leases it, every worker tells its checksum, leases
return.

One question of a client is one item with random bytes. It is answered when every ready engine has answered for all its
workers and no lease on the item is left, or with the reason why not when its time is over.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mmcached.frontend.engine_gate import EngineGate
from mmcached.frontend.engine_links import EngineLink
from mmcached.frontend.routes import RoutedItem
from mmcached.shm import ObjectStoreWriter, codec
from mmcached.wire.channels import Frame
from mmcached.wire.errors import CacheFull, DeadlineExceeded, ItemTooLarge, MmcachedError, ServiceUnavailable
from mmcached.wire.handle import Handle, LeaseId
from mmcached.wire.messages.client import Probed
from mmcached.wire.messages.engine import ProbeEngine
from mmcached.wire.messages.frontend import EngineProbed
from mmcached.wire.messages.parts import Inline

PROBE_BYTES = 1024
FIELD = "probe"


@dataclass(slots=True)
class _Probe:
    peer: bytes
    request_id: int
    checksum: str
    key: str | None
    timeout_s: float
    deadline: float
    missing: dict[int, EngineLink]
    num_engines: int
    num_workers: int = 0
    wrong: list[str] = field(default_factory=list)


class Probes:
    """The probes that are under way.

    Args:
        store: of the ring; None when every item travels inline.
    """

    def __init__(self, gate: EngineGate, store: ObjectStoreWriter | None) -> None:
        self._gate = gate
        self._store = store
        self._open: dict[int, _Probe] = {}
        self._last_token = 0

    def start(self, peer: bytes, request_id: int, timeout_s: float, now: float) -> None:
        """Send a fresh item to every ready engine.

        Raises:
            ServiceUnavailable: no engine is ready.
            MmcachedError: the item could not be sent; nothing is left of it.
        """
        links = [link for link in self._gate.links if link.is_ready]
        if not links:
            raise ServiceUnavailable("no engine is ready")
        self._last_token += 1
        data = secrets.token_bytes(PROBE_BYTES)
        item, key = self._place(data)
        probe = _Probe(
            peer=peer,
            request_id=request_id,
            checksum=hashlib.blake2b(data, digest_size=16).hexdigest(),
            key=key,
            timeout_s=timeout_s,
            deadline=now + timeout_s,
            missing={link.incarnation: link for link in links},
            num_engines=len(links),
        )
        token = self._last_token
        self._open[token] = probe
        try:
            for link in links:
                self._send(link, token, item)
        except MmcachedError:
            self._end(token)
            raise

    def answered(self, link: EngineLink, message: EngineProbed) -> None:
        """Take an engine's answer; a late one, or a second, changes nothing."""
        probe = self._open.get(message.token)
        if probe is None or probe.missing.pop(link.incarnation, None) is None:
            return
        probe.num_workers += len(message.checksums)
        for rank, checksum in enumerate(message.checksums):
            if checksum != probe.checksum:
                probe.wrong.append(f"worker {rank} of engine {link.index} read other bytes than were written")

    def take_finished(self, now: float) -> list[tuple[bytes, int, Probed | MmcachedError]]:
        """Return and forget the probes that have an outcome: `(client, request id, outcome)`."""
        finished = []
        for token, probe in list(self._open.items()):
            outcome = self._outcome(probe, now)
            if outcome is not None:
                self._end(token)
                finished.append((probe.peer, probe.request_id, outcome))
        return finished

    def _outcome(self, probe: _Probe, now: float) -> Probed | MmcachedError | None:
        if probe.wrong:
            return ServiceUnavailable("; ".join(probe.wrong))
        gone = [link.index for link in probe.missing.values() if self._gate.links.get(link.incarnation) is None]
        if gone:
            return ServiceUnavailable(f"engine {gone[0]} died while it was probed")
        if not probe.missing and not self._is_leased(probe):
            return Probed(probe.request_id, probe.num_engines, probe.num_workers)
        if now < probe.deadline:
            return None
        if probe.missing:
            link = next(iter(probe.missing.values()))
            return DeadlineExceeded(f"probe of engine {link.index}", probe.timeout_s)
        return DeadlineExceeded("return of the probe's leases", probe.timeout_s)

    def _place(self, data: bytes) -> tuple[RoutedItem, str | None]:
        """Put the item into the ring if there is one with room; else it travels inline."""
        record: codec.Record = {FIELD: np.frombuffer(data, np.uint8)}
        key = f"probe {secrets.token_hex(8)}"
        if self._store is not None:
            try:
                handle = self._store.put(key, record)
            except (CacheFull, ItemTooLarge):
                pass  # full of leases: the item travels inline, like any other
            else:
                return RoutedItem(key, handle.nbytes, (), handle), key
        return RoutedItem(key, len(data), (), list(codec.encode(record).frames())), None

    def _send(self, link: EngineLink, token: int, item: RoutedItem) -> None:
        def make(routed: Sequence[RoutedItem], leases: Sequence[LeaseId | None]) -> tuple[ProbeEngine, list[Frame]]:
            payload = routed[0].payload
            if isinstance(payload, Handle):
                return ProbeEngine(token, payload, leases[0]), []
            frames = payload or []
            return ProbeEngine(token, Inline(0, len(frames))), frames

        self._gate.send_with_leases(link, [item], make)

    def _is_leased(self, probe: _Probe) -> bool:
        if self._store is None or probe.key is None:
            return False
        handle = self._store.find(probe.key)
        return handle is not None and self._store.ring.is_leased(handle)

    def _end(self, token: int) -> None:
        probe = self._open.pop(token)
        if probe.key is not None and self._store is not None:
            self._store.discard(probe.key)
