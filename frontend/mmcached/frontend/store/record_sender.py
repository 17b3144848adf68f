"""How records travel to clients: under a lease in place, or as frames.

    a record in the ring     a handle and a lease, if the client's row takes one now; else a copy of its bytes as frames
    one that is not kept     the frames that it came in

Never an error: a client without a row, or with its quota used up, gets frames.

Invariant: a lease is counted before the message that carries it is sent, and taken back if that was not accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mmcached.frontend.store.client_rows import ClientRows
from mmcached.frontend.store.host_tier import HostTier
from mmcached.shm import EncodedRecord
from mmcached.shm.crash_points import crash_point
from mmcached.wire.handle import Handle, LeaseId
from mmcached.wire.messages.client import Records, ToClient
from mmcached.wire.messages.frontend import ClaimRecord, GetRecords
from mmcached.wire.messages.parts import Inline
from mmcached.wire.sockets.channels import Frame

MAX_INLINE_BYTES = 256 << 20
"""In one answer: a list of large keys, from a client without a row, must not cost this process its memory. One record
goes in any case; of a longer list the rest is answered as not there, and can be asked for again.
"""

Found = Handle | EncodedRecord | None
"""A record in the ring, one that came as frames, or none."""


class Send(Protocol):
    """Queues a message for a client without blocking; returns whether it was queued."""

    def __call__(self, peer: bytes, message: ToClient, payload: Sequence[Frame] = ()) -> bool: ...


class RecordSender:
    """The answers of one desk.

    Attributes:
        num_inline, num_withheld: records that were sent as frames, or not at all for the sake of the limit.
    """

    def __init__(self, tier: HostTier, rows: ClientRows, send: Send) -> None:
        self._tier = tier
        self._rows = rows
        self._send = send
        self.num_inline = 0
        self.num_withheld = 0

    def send_records(self, peer: bytes, message: GetRecords | ClaimRecord, found: Sequence[Found]) -> None:
        """Lease what lies in the ring, send the rest as frames; a client that is gone costs no lease."""
        payload: list[Frame] = []
        records: list[Handle | Inline | None] = []
        leases: list[LeaseId | None] = []
        granted: list[tuple[Handle, LeaseId]] = []
        inline_bytes = 0
        for each in found:
            lease = None
            if isinstance(each, Handle) and (lease := self._rows.grant(peer, message, each)) is not None:
                granted.append((each, lease))
                records.append(each)
            else:
                inline_bytes += 0 if each is None else each.nbytes
                records.append(self._inline(each, payload, inline_bytes))
            leases.append(lease)
        crash_point("grant.before_send")
        if not self._send(peer, Records(message.request_id, self._tier.epoch, records, leases), payload):
            # Not queued, so no descriptor can arrive: undo in reverse order, or seq would show a gap.
            for handle, lease in reversed(granted):
                self._rows.undo_grant(message.client_id, handle, lease)
        crash_point("grant.after_send")

    def _inline(self, found: Found, payload: list[Frame], num_bytes: int) -> Inline | None:
        """Append the frames of a record, and say where they are; None if there is none, or no room for it."""
        if found is None:
            return None
        if payload and num_bytes > MAX_INLINE_BYTES:
            self.num_withheld += 1
            return None
        frames = self._tier.frames(found) if isinstance(found, Handle) else found.frames()
        self.num_inline += 1
        payload.extend(frames)
        return Inline(len(payload) - len(frames), len(frames))
