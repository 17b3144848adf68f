"""The frontend's side of the engines: their sockets, their rows of the ring, the leases that go with each message.

    engine   EngineHello ->        gate    refused while another process with this index lives
             <- Ring | Refused             at any time `Detached`: dropped although it lives, it says hello anew
             RowHello ->                   the row must hold the nonce
             <- RowAttached
             EngineReady ->                requests may go there

Invariants: a lease is counted before the message that carries it is sent, and taken back if that message was not
accepted; nothing here waits. What engines say about requests is handed to the owner.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import assert_never

import structlog

from mmcached.frontend.caches.item_cache import OutgoingItem
from mmcached.frontend.engines.barriers import Barriers
from mmcached.frontend.engines.engine_links import EngineLink, EngineLinks
from mmcached.shm import RingWriter, RowVoided
from mmcached.shm.crash_points import crash_point
from mmcached.shm.store import codec
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import (
    ConfigError,
    LeaseRefused,
    MmcachedError,
    PeerGone,
    RemoteProtocolError,
    ServiceUnavailable,
    error_to_wire,
)
from mmcached.wire.handle import Handle, LeaseId
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend as received
from mmcached.wire.process.turns import Guard, TurnShare
from mmcached.wire.sockets.channels import Frame
from mmcached.wire.sockets.listener import Listener

log = structlog.get_logger("mmcached.frontend")

MakeMessage = Callable[[Sequence[OutgoingItem], Sequence[LeaseId | None]], tuple[to_engine.FromFrontend, list[Frame]]]
"""From items as they will travel, and one lease for each that lies in the ring, to a message with its frames."""


class EngineGate:
    """All engines of one frontend.

    Args:
        ring: None when every item travels inline, perhaps until `use`.
        clock: monotonic seconds.
        on_lost: called with an engine that is gone, and why, after it has been removed.
        on_new: called with an engine process that has come.
    """

    def __init__(
        self,
        channel: Listener[received.FromEngine],
        ring: RingWriter | None,
        config: ServiceConfig,
        *,
        clock: Callable[[], float],
        on_lost: Callable[[EngineLink, str], None],
        on_new: Callable[[EngineLink], None],
    ) -> None:
        self._channel = channel
        self._ring = ring
        self._clock = clock
        self._barriers = None if ring is None else Barriers(ring, self.tell)
        self._digest = config.digest()
        self._on_lost = on_lost
        self._on_new = on_new
        self._incarnation = secrets.randbits(63)
        self.links = EngineLinks()
        self.num_protocol_errors = 0
        self.num_lease_refusals = 0

    def use(self, ring: RingWriter) -> None:
        """There is a ring now: announce it. Items travel inline to each engine until it has attached its row."""
        self._ring = ring
        self._barriers = Barriers(ring, self.tell)
        for link in self.links:
            self.tell(link, to_engine.Ring(self._incarnation, ring.announcement))

    # ---- receiving

    def serve(self, share: TurnShare, guard: Guard) -> Iterator[tuple[EngineLink, received.FromEngine, list[Frame]]]:
        """Yield what engines say about requests; what concerns the connection is dealt with here.

        Args:
            share: of this turn.
            guard: an engine whose word cannot be dealt with is lost: what it holds may be half booked.
        """
        for peer, message, payload in self._channel.serve(share):
            if isinstance(message, RemoteProtocolError):
                self.num_protocol_errors += 1
                log.warning("bad message from an engine", peer=peer.hex(), reason=str(message))
                continue
            link = self.links.by_peer(peer)
            match message:
                case (
                    received.EngineHello()
                    | received.RowHello()
                    | received.EngineReady()
                    | received.LeaseGap()
                    | received.Reconcile()
                ):
                    fault = guard.call("message of an engine", self._hear, peer, link, message)
                    if fault is not None and link is not None:
                        self._lose(link, str(fault))
                case _:
                    if link is not None:
                        yield link, message, payload

    def _hear(
        self,
        peer: bytes,
        link: EngineLink | None,
        message: received.EngineHello
        | received.RowHello
        | received.EngineReady
        | received.LeaseGap
        | received.Reconcile,
    ) -> None:
        match message:
            case received.EngineHello():
                self._greet(peer, message)
            case received.RowHello():
                self._attach_row(link, message)
            case received.EngineReady():
                self._make_ready(link, message)
            case received.LeaseGap() | received.Reconcile():
                self._reconcile(link, message)
            case _:
                assert_never(message)

    def _greet(self, peer: bytes, message: received.EngineHello) -> None:
        if message.config_digest != self._digest:
            error = ConfigError(
                "config digest", message.config_digest, f"the frontend has {self._digest}: restart both"
            )
            log.error("engine refused", engine=message.engine_index, reason=str(error))
            self._channel.try_send(peer, to_engine.Refused(error_to_wire(error)))
            return
        link = self.links.get(message.incarnation)
        if link is None:
            former = self.links.by_index(message.engine_index)
            if former is not None and self._channel.is_connected(former.peer):
                reason = f"engine {message.engine_index} is another process, and it lives; end that one first"
                log.error("engine refused", engine=message.engine_index, reason=reason)
                self._channel.try_send(peer, to_engine.Refused(error_to_wire(ServiceUnavailable(reason))))
                return
            if former is not None:
                self._lose(former, "another engine process has taken its place")
            link = EngineLink(peer, message.engine_index, message.incarnation)
            self.links.add(link)
            self._on_new(link)
        link.peer = peer
        announcement = None if self._ring is None else self._ring.announcement
        self._channel.try_send(peer, to_engine.Ring(self._incarnation, announcement))
        if self._barriers is not None:
            self._barriers.ask(link, self._clock())  # if it has connected anew: what was under way then may be lost

    def _attach_row(self, link: EngineLink | None, message: received.RowHello) -> None:
        if link is None or self._ring is None or message.epoch != self._ring.announcement.epoch:
            return
        if not self._ring.attach(message.row, message.nonce):
            log.warning("row refused: it does not hold the nonce", engine=link.index, row=message.row)
            return
        link.row, link.nonce = message.row, message.nonce
        self._channel.try_send(link.peer, to_engine.RowAttached(message.epoch, message.row, message.nonce))

    def _make_ready(self, link: EngineLink | None, message: received.EngineReady) -> None:
        if link is not None and (self._ring is None or link.row is not None):
            link.is_ready = True
            log.info("engine ready", engine=link.index, workers=message.num_workers)

    def _reconcile(self, link: EngineLink | None, message: received.LeaseGap | received.Reconcile) -> None:
        if link is None or self._barriers is None:
            return
        if isinstance(message, received.LeaseGap):
            if message.nonce == link.nonce:
                self._barriers.ask(link, self._clock())
            return
        try:
            self._barriers.answered(link, message)
        except RemoteProtocolError as error:
            self.num_protocol_errors += 1
            log.error("engine miscounts its leases", engine=link.index, reason=str(error))

    # ---- sending

    def send_with_leases(
        self, link: EngineLink, items: Sequence[OutgoingItem], make_message: MakeMessage
    ) -> list[OutgoingItem]:
        """Grant a lease on each item that lies in the ring, build the message, queue it.

        Returns:
            the items as they travel: those that the engine takes no lease for just now are inline.
        Raises:
            MmcachedError: of `make_message`, or the message could not be queued. No lease is left.
        """
        granted: list[tuple[Handle, LeaseId]] = []
        try:
            routed, leases = [], []
            for item in items:
                sent_item, lease = self._lease_or_inline(link, item)
                if isinstance(sent_item.payload, Handle) and lease is not None:
                    granted.append((sent_item.payload, lease))
                routed.append(sent_item)
                leases.append(lease)
            message, payload = make_message(routed, leases)
            crash_point("grant.before_send")
            self._channel.send(link.peer, message, payload)
            crash_point("grant.after_send")
        except MmcachedError as error:
            # Not queued, so no descriptor can arrive: undo in reverse order, or seq would show a gap.
            for handle, lease in reversed(granted):
                self._undo_grant(link, handle, lease)
            if isinstance(error, PeerGone):
                self._lose(link, "its connection is closed")
            raise
        if granted and self._barriers is not None:
            self._barriers.granted(link, self._clock())
        return routed

    def _lease_or_inline(self, link: EngineLink, item: OutgoingItem) -> tuple[OutgoingItem, LeaseId | None]:
        """Grant a lease on an item in the ring; if the row takes none just now, copy its bytes out instead."""
        if not isinstance(item.payload, Handle):
            return item, None
        if self._ring is None:
            raise ServiceUnavailable("there is no ring; try again")
        if link.row is not None:
            with contextlib.suppress(LeaseRefused):
                return item, self._ring.grant(link.row, item.payload)
        self.num_lease_refusals += 1
        return replace(item, payload=codec.split(self._ring.read(item.payload))), None

    def _undo_grant(self, link: EngineLink, handle: Handle, lease: LeaseId) -> None:
        if self._ring is not None and link.row is not None:
            self._ring.undo_grant(link.row, handle, lease)

    def tell(self, link: EngineLink, message: to_engine.FromFrontend) -> None:
        """Queue a message without leases; one that cannot be queued is logged: the engine is going or gone."""
        self._channel.try_send(link.peer, message)

    # ---- deaths

    def check(self) -> None:
        """Look at the rows' locks: engines that have died are lost; and for leases that were lost on the way."""
        if self._ring is None or self._barriers is None:
            return
        self._barriers.check(self.links, self._clock())
        for event in self._ring.poll_deaths():
            reason = "no process holds its row" if isinstance(event, RowVoided) else event.reason
            link = self.links.by_row(event.row, event.nonce)
            if link is not None:
                self._lose(link, reason)

    def _lose(self, link: EngineLink, reason: str) -> None:
        log.warning("engine lost", engine=link.index, reason=reason)
        self.links.remove(link)
        if self._channel.is_connected(link.peer):  # it lives, and would wait for requests for ever
            self._channel.try_send(link.peer, to_engine.Detached(reason))
        self._on_lost(link, reason)
