"""Worker group: the workers of an engine, from hello to attached, and broadcasts to them.

    hello --> attaching --> attached
If a rank's process was replaced, its caches are lost and the whole group must start over, see `hello`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from mmcached.wire.errors import ChannelFull, ConfigError, MmcachedError, PeerGone, error_to_wire
from mmcached.wire.messages import worker as to_worker
from mmcached.wire.messages.engine import FromWorker, WorkerAttached, WorkerHello
from mmcached.wire.messages.parts import EncoderForm
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.sockets.listener import Listener

log = structlog.get_logger("mmcached.engine")


@dataclass(slots=True)
class WorkerLink:
    """Worker of one rank.

    Attributes:
        is_attached: whether it accepts plans; until then, `fingerprint` is "" and `encoder` is None.
        embedding_bytes: size of one embedding in its encoder cache; 0 until it has measured.
    """

    peer: bytes
    rank: int
    worker_epoch: int
    device: str
    is_attached: bool = False
    embedding_bytes: int = 0
    fingerprint: str = ""
    encoder: EncoderForm | None = None


class WorkerGroup:
    def __init__(self, channel: Listener[FromWorker], world_size: int, *, incarnation: int, config_digest: str) -> None:
        self._channel = channel
        self._world_size = world_size
        self._incarnation = incarnation
        self._config_digest = config_digest
        self._links: dict[int, WorkerLink] = {}

    def hello(self, peer: bytes, message: WorkerHello) -> tuple[WorkerLink, bool] | None:
        """Register a worker; return its link and whether it replaces a process of its rank, or None if refused."""
        if message.config_digest != self._config_digest:
            limit = f"the engine has {self._config_digest}: restart both"
            error = ConfigError("config digest", message.config_digest, limit)
            log.error("worker refused", rank=message.rank, reason=str(error))
            self._send_or_log(peer, message.rank, to_worker.WorkerRefused(error_to_wire(error)))
            return None
        former = self._links.get(message.rank)
        if former is not None and former.worker_epoch == message.worker_epoch:
            former.peer = peer
            return former, False
        link = WorkerLink(peer, message.rank, message.worker_epoch, message.device)
        self._links[message.rank] = link
        return link, former is not None

    def attach(self, link: WorkerLink) -> None:
        link.is_attached = False
        self._send_or_log(link.peer, link.rank, to_worker.Attach(self._incarnation))

    def attached(self, message: WorkerAttached) -> WorkerLink | None:
        """Mark a worker as attached; return None if the message is stale, of another process or engine, or refused."""
        link = self.by_epoch(message.worker_epoch)
        if link is None or message.engine_incarnation != self._incarnation:
            return None
        others = {other.fingerprint for other in self._links.values() if other is not link and other.is_attached}
        if others - {message.encoder_fingerprint}:
            limit = f"the other ranks have {others.pop()}: one checkpoint for all"
            error = ConfigError("encoder fingerprint", message.encoder_fingerprint, limit)
            log.error("worker refused", rank=link.rank, reason=str(error))
            self._send_or_log(link.peer, link.rank, to_worker.WorkerRefused(error_to_wire(error)))
            return None
        link.is_attached = True
        link.fingerprint = message.encoder_fingerprint
        link.embedding_bytes = message.embedding_bytes
        link.encoder = message.encoder
        return link

    def by_epoch(self, worker_epoch: int) -> WorkerLink | None:
        return next((link for link in self._links.values() if link.worker_epoch == worker_epoch), None)

    @property
    def are_all_attached(self) -> bool:
        return len(self._links) == self._world_size and all(link.is_attached for link in self._links.values())

    @property
    def embedding_bytes(self) -> int:
        """Largest size of one embedding in a worker's encoder cache; 0 while unknown."""
        return max((link.embedding_bytes for link in self._links.values()), default=0)

    @property
    def encoder_fingerprint(self) -> str:
        """Fingerprint that all ranks' encoders share; "" before all are attached."""
        return self._links[0].fingerprint if self.are_all_attached else ""

    @property
    def encoder(self) -> EncoderForm | None:
        """Input and output of the ranks' encoders; None before all are attached."""
        return self._links[0].encoder if self.are_all_attached else None

    @property
    def epochs(self) -> list[int]:
        return [link.worker_epoch for link in self.in_rank_order()]

    def in_rank_order(self) -> list[WorkerLink]:
        return [self._links[rank] for rank in sorted(self._links)]

    def send(self, link: WorkerLink, message: to_worker.FromEngineToWorker, payload: Sequence[Frame] = ()) -> None:
        """Queue a message that must arrive; raises `PeerGone` (it is no longer attached) or `ChannelFull`."""
        try:
            self._channel.send(link.peer, message, payload)
        except PeerGone:
            link.is_attached = False
            raise

    def send_all(self, message: to_worker.FromEngineToWorker) -> None:
        """Queue a message for every connected worker; logs a failure, because a dead worker starts over anyway."""
        for link in self.in_rank_order():
            try:
                self.send(link, message)
            except (PeerGone, ChannelFull) as error:
                _log_unsent(link.rank, message, error)

    def _send_or_log(self, peer: bytes, rank: int, message: to_worker.FromEngineToWorker) -> None:
        try:
            self._channel.send(peer, message)
        except (PeerGone, ChannelFull) as error:
            _log_unsent(rank, message, error)


def _log_unsent(rank: int, message: object, error: MmcachedError) -> None:
    log.warning("message for a worker lost", rank=rank, message=type(message).__name__, reason=str(error))
