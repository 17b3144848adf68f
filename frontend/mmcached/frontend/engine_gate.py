"""The frontend's side of the engines: their sockets, their rows of the ring, the leases that go with each message.

    engine   EngineHello ->        gate    another process with this index: the former is gone
             <- Ring | Refused
             RowHello ->                   the row must hold the nonce
             <- RowAttached
             EngineReady ->                requests may go there

Invariants: a lease is counted before the message that carries it is sent, and taken back if that message was not
accepted; nothing here waits. What engines say about requests is handed to the owner.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence

import structlog

from mmcached.frontend.engine_links import EngineLink, EngineLinks
from mmcached.frontend.routes import RoutedItem
from mmcached.shm import RingWriter, RowVoided
from mmcached.wire.channels import Frame, RouterChannel
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import (
    ChannelFull,
    ConfigError,
    MmcachedError,
    PeerGone,
    RemoteProtocolError,
    ServiceUnavailable,
    error_to_wire,
)
from mmcached.wire.handle import Handle, LeaseId
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend as received

log = structlog.get_logger("mmcached.frontend")

MakeMessage = Callable[[Sequence[LeaseId | None]], tuple[to_engine.FromFrontend, list[Frame]]]


class EngineGate:
    """All engines of one frontend.

    Args:
        ring: None when every item travels inline.
        on_lost: called with an engine that is gone, and why, after it has been removed.
        on_new: called with an engine process that has come.
    """

    def __init__(
        self,
        channel: RouterChannel[received.FromEngine],
        ring: RingWriter | None,
        config: ServiceConfig,
        *,
        on_lost: Callable[[EngineLink, str], None],
        on_new: Callable[[EngineLink], None],
    ) -> None:
        self._channel = channel
        self._ring = ring
        self._digest = config.digest()
        self._on_lost = on_lost
        self._on_new = on_new
        self._incarnation = secrets.randbits(63)
        self.links = EngineLinks()
        self.num_protocol_errors = 0

    # ---- receiving

    def serve(self) -> Iterator[tuple[EngineLink, received.FromEngine, list[Frame]]]:
        """Yield what engines say about requests; what concerns the connection is dealt with here."""
        while (raw := self._channel.receive_raw()) is not None:
            peer, frames = raw
            try:
                message, payload = self._channel.decode(frames)
            except RemoteProtocolError as error:
                self.num_protocol_errors += 1
                log.warning("bad message from an engine", peer=peer.hex(), reason=str(error))
                continue
            link = self.links.by_peer(peer)
            match message:
                case received.EngineHello():
                    self._greet(peer, message)
                case received.RowHello():
                    self._attach_row(link, message)
                case received.EngineReady():
                    self._make_ready(link, message)
                case _:
                    if link is not None:
                        yield link, message, payload

    def _greet(self, peer: bytes, message: received.EngineHello) -> None:
        if message.config_digest != self._digest:
            error = ConfigError(
                "config digest", message.config_digest, f"the frontend has {self._digest}: restart both"
            )
            log.error("engine refused", engine=message.engine_index, reason=str(error))
            self._send_or_log(peer, to_engine.Refused(error_to_wire(error)))
            return
        link = self.links.get(message.incarnation)
        if link is None:
            former = self.links.by_index(message.engine_index)
            if former is not None:
                self._lose(former, "another engine process has taken its place")
            link = EngineLink(peer, message.engine_index, message.incarnation)
            self.links.add(link)
            self._on_new(link)
        link.peer = peer
        announcement = None if self._ring is None else self._ring.announcement
        self._send_or_log(peer, to_engine.Ring(self._incarnation, announcement))

    def _attach_row(self, link: EngineLink | None, message: received.RowHello) -> None:
        if link is None or self._ring is None or message.epoch != self._ring.announcement.epoch:
            return
        if not self._ring.attach(message.row, message.nonce):
            log.warning("row refused: it does not hold the nonce", engine=link.index, row=message.row)
            return
        link.row, link.nonce = message.row, message.nonce
        self._send_or_log(link.peer, to_engine.RowAttached(message.epoch, message.row, message.nonce))

    def _make_ready(self, link: EngineLink | None, message: received.EngineReady) -> None:
        if link is not None and (self._ring is None or link.row is not None):
            link.is_ready = True
            log.info("engine ready", engine=link.index, workers=message.num_workers)

    # ---- sending

    def send_with_leases(self, link: EngineLink, items: Sequence[RoutedItem], make_message: MakeMessage) -> None:
        """Grant a lease on each item that lies in the ring, build the message, queue it.

        Raises:
            MmcachedError: of `make_message`, or the message could not be queued. No lease is left.
        """
        granted: list[tuple[Handle, LeaseId]] = []
        try:
            leases = []
            for item in items:
                lease = None
                if isinstance(item.payload, Handle):
                    lease = self.grant(link, item.payload)
                    granted.append((item.payload, lease))
                leases.append(lease)
            message, payload = make_message(leases)
            self._channel.send(link.peer, message, payload)
        except MmcachedError as error:
            # Not queued, so no descriptor can arrive: undo in reverse order, or seq would show a gap.
            for handle, lease in reversed(granted):
                self.undo_grant(link, handle, lease)
            if isinstance(error, PeerGone):
                self._lose(link, "its connection is closed")
            raise

    def grant(self, link: EngineLink, handle: Handle) -> LeaseId:
        if self._ring is None or link.row is None:
            raise ServiceUnavailable("the engine is not attached to the ring yet; try again")
        return self._ring.grant(link.row, handle)

    def undo_grant(self, link: EngineLink, handle: Handle, lease: LeaseId) -> None:
        if self._ring is not None and link.row is not None:
            self._ring.undo_grant(link.row, handle, lease)

    def tell(self, link: EngineLink, message: to_engine.FromFrontend) -> None:
        """Queue a message without leases; one that cannot be queued is logged: the engine is going or gone."""
        self._send_or_log(link.peer, message)

    def _send_or_log(self, peer: bytes, message: to_engine.FromFrontend) -> None:
        try:
            self._channel.send(peer, message)
        except (PeerGone, ChannelFull) as error:
            log.warning("engine not told", message=type(message).__name__, reason=str(error))

    # ---- deaths

    def check_deaths(self) -> None:
        """Look at the rows' locks; engines that have died are lost."""
        if self._ring is None:
            return
        for event in self._ring.poll_deaths():
            reason = "no process holds its row" if isinstance(event, RowVoided) else event.reason
            link = self.links.by_row(event.row, event.nonce)
            if link is not None:
                self._lose(link, reason)

    def _lose(self, link: EngineLink, reason: str) -> None:
        log.warning("engine lost", engine=link.index, reason=reason)
        self.links.remove(link)
        self._on_lost(link, reason)
