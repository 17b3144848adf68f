"""The rows of the store's ring that clients have taken, and the leases that go with answers to them.

A client takes its row by itself and says so (`TakeRow`); the row must hold the nonce. One client, one row: another one
takes the former's place, whose leases end with its lock. Within one connection no descriptor is lost, so a client is
asked which leases have arrived only when it says over another connection that it still has the row: until it has
answered it takes no lease, and records come to it inline.

Knows nothing of keys or records. Invariant: a lease is granted only to the row that its client names in the request.
"""

from __future__ import annotations

from dataclasses import dataclass

from mmcached.shm import RingWriter
from mmcached.wire.errors import LeaseRefused, PeerGone, RemoteProtocolError
from mmcached.wire.handle import Handle, LeaseId
from mmcached.wire.messages.frontend import ClaimRecord, GetRecords, Reconcile, TakeRow
from mmcached.wire.messages.parts import Barrier


@dataclass(slots=True)
class _ClientRow:
    """One client's row. `peer` is the connection over which it has last said that it has it."""

    client_id: str
    peer: bytes
    row: int
    nonce: int


class ClientRows:
    """All clients with a row.

    Args:
        ring: of the store; None: nobody gets a row, until `adopt`.
    """

    def __init__(self, ring: RingWriter | None) -> None:
        self._ring = ring
        self._rows: dict[str, _ClientRow] = {}

    def adopt(self, ring: RingWriter) -> None:
        """The store has a ring now."""
        self._ring = ring

    def __len__(self) -> int:
        return len(self._rows)

    def clients(self) -> set[str]:
        return set(self._rows)

    def take(self, peer: bytes, message: TakeRow) -> tuple[bool, Barrier | None]:
        """Attach the row that a client has taken; repeated over the same connection it changes nothing.

        Returns:
            whether leases will come, and what to ask the client first: its connection is new, and leases are out.
        """
        ring, client_id = self._ring, message.client_id
        if ring is None or message.ring_epoch != ring.announcement.epoch:
            return False, None
        if any(link.row == message.row and link.nonce == message.nonce for link in self._of_others(client_id)):
            return False, None
        if not ring.attach(message.row, message.nonce):
            self.leave(client_id)
            return False, None
        known = self._rows.get(client_id)
        self._rows[client_id] = _ClientRow(client_id, peer, message.row, message.nonce)
        if known is None or known.peer == peer or known.nonce != message.nonce:
            return True, None
        return True, ring.open_barrier(message.row)

    def reconcile(self, peer: bytes, message: Reconcile) -> int | None:
        """Take the answer to a barrier.

        Returns:
            how many leases were lost; None if it answers anything but the last barrier.
        Raises:
            RemoteProtocolError: this connection has no row of that incarnation, or the counts cannot be.
        """
        link = next((link for link in self._rows.values() if (link.peer, link.nonce) == (peer, message.nonce)), None)
        if link is None or self._ring is None:
            raise RemoteProtocolError("this client has no row of that incarnation", "nonce")
        return self._ring.reconcile(link.row, message.nonce, message.barrier_id, message.received)

    def grant(self, peer: bytes, request: GetRecords | ClaimRecord, handle: Handle) -> LeaseId | None:
        """Count a lease for the row that a request names, before it is sent; None: none now, the record goes inline.

        Args:
            peer: where it will be sent. Over a former connection it would be lost, and nobody would ask for it.
        """
        link = self._rows.get(request.client_id)
        if self._ring is None or link is None or (link.peer, link.nonce) != (peer, request.nonce):
            return None
        try:
            return self._ring.grant(link.row, handle)
        except (LeaseRefused, PeerGone):
            return None

    def undo_grant(self, client_id: str, handle: Handle, lease: LeaseId) -> None:
        """Take back the last grant of a client's row: it was provably not sent."""
        link = self._rows.get(client_id)
        if self._ring is not None and link is not None and link.nonce == lease.nonce:
            self._ring.undo_grant(link.row, handle, lease)

    def leave(self, client_id: str) -> None:
        """Grant nothing more to a client; what it holds ends with its row's lock."""
        self._rows.pop(client_id, None)

    def check_deaths(self) -> list[str]:
        """Look at the rows' locks; return the clients whose row takes no more leases."""
        if self._ring is None:
            return []
        gone = {(event.row, event.nonce) for event in self._ring.poll_deaths()}
        clients = [link.client_id for link in self._rows.values() if (link.row, link.nonce) in gone]
        for client_id in clients:
            self.leave(client_id)
        return clients

    def _of_others(self, client_id: str) -> list[_ClientRow]:
        return [link for link in self._rows.values() if link.client_id != client_id]
