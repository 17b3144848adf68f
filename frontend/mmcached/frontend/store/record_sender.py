"""Sends records to clients that have asked for them.

a record in the ring       its handle to a client that reads the ring by itself; else a copy of its bytes as frames
a record that is not kept  the frames that it came in
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from mmcached.frontend.connections.channel import Channel
from mmcached.frontend.connections.entry_owners import EntryOwners
from mmcached.frontend.store.record_store import RecordStore
from mmcached.shm import EncodedRecord
from mmcached.wire.errors import RemoteProtocolError, StaleHandle
from mmcached.wire.handle import Handle
from mmcached.wire.messages.client import Records
from mmcached.wire.messages.frontend import ClaimRecord, ClaimRecords, GetRecords
from mmcached.wire.messages.parts import Inline
from mmcached.wire.sockets.frames import Frame

log = structlog.get_logger("mmcached.frontend")

MAX_INLINE_BYTES = 256 << 20
"""Limit of one answer: a request for many large keys, from a client that is not a reader, must not exhaust this
process's memory. The first record is always sent; records beyond the limit are answered as missing, and can be asked
for again.
"""

Found = Handle | EncodedRecord | None
"""A record in the ring, a record that came as frames, or None for a missing one."""


class RecordSender:
    """The answers of one store.

    Attributes:
        num_inline: Records sent as frames.
        num_withheld: Records not sent because of `MAX_INLINE_BYTES`.
    """

    def __init__(self, records: RecordStore, readers: EntryOwners[str], channel: Channel) -> None:
        self._records = records
        self._readers = readers
        self._channel = channel
        self.num_inline = 0
        self.num_withheld = 0

    def send_records(self, peer: bytes, message: GetRecords | ClaimRecord, found: Sequence[Found]) -> None:
        """Send handles of records in the ring, and the other records as frames; ignores a disconnected client."""
        records, payload = self.places(message, found)
        answer = Records(message.request_id, self._records.epoch, records)
        if not self._channel.try_send(peer, answer, payload):
            log.info("records not sent: the client is gone, or does not read")

    def places(
        self, message: GetRecords | ClaimRecord | ClaimRecords, found: Sequence[Found]
    ) -> tuple[list[Handle | Inline | None], list[Frame]]:
        """Return the places of records for a client, and the frames of records that it cannot read in the ring."""
        reads_ring = self._readers.has(message.client_id, message.incarnation)
        payload: list[Frame] = []
        records: list[Handle | Inline | None] = []
        inline_bytes = 0
        for each in found:
            if reads_ring and isinstance(each, Handle):
                records.append(each)
            else:
                inline_bytes += 0 if each is None else each.nbytes
                records.append(self._inline(each, payload, inline_bytes))
        return records, payload

    def _inline(self, found: Found, payload: list[Frame], num_bytes: int) -> Inline | None:
        """Append the frames of a record, and return their place; None if the record is missing or exceeds the limit."""
        if found is None:
            return None
        if payload and num_bytes > MAX_INLINE_BYTES:
            self.num_withheld += 1
            return None
        try:
            frames = self._records.in_ring.frames(found) if isinstance(found, Handle) else found.frames()
        except (StaleHandle, RemoteProtocolError):  # its client has overwritten it in its nursery
            if isinstance(found, Handle):
                self._records.in_ring.drop_spoiled(found)
            return None
        self.num_inline += 1
        payload.extend(frames)
        return Inline(len(payload) - len(frames), len(frames))
