"""Sends records to clients: under a lease in place, or as frames.

    a record in the ring     a handle and a lease, if the client takes one now; else a copy of its bytes as frames
    one that is not kept     the frames that it came in

Never an error: a client that is no reader, or has used up its quota, gets frames.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from mmcached.frontend.connections.readers import Granted, Reader, Readers
from mmcached.frontend.store.record_store import RecordStore
from mmcached.shm import EncodedRecord
from mmcached.wire.errors import ChannelFull, MmcachedError, PeerGone
from mmcached.wire.handle import Handle, LeaseId
from mmcached.wire.messages.client import Records
from mmcached.wire.messages.frontend import ClaimRecord, GetRecords
from mmcached.wire.messages.parts import Inline
from mmcached.wire.sockets.channels import Frame

log = structlog.get_logger("mmcached.frontend")

MAX_INLINE_BYTES = 256 << 20
"""In one answer: a list of large keys, from a client that is no reader, must not cost this process its memory. One
record goes in any case; of a longer list the rest is answered as not there, and can be asked for again.
"""

Found = Handle | EncodedRecord | None
"""A record in the ring, one that came as frames, or none."""


class RecordSender:
    """The answers of one store.

    Attributes:
        num_inline, num_withheld: records that were sent as frames, or not at all for the sake of the limit.
    """

    def __init__(self, records: RecordStore, readers: Readers[str]) -> None:
        self._records = records
        self._readers = readers
        self.num_inline = 0
        self.num_withheld = 0

    def send_records(self, peer: bytes, message: GetRecords | ClaimRecord, found: Sequence[Found]) -> None:
        """Lease what lies in the ring, send the rest as frames; a client that is gone costs no lease."""
        reader = self._readers.get(message.client_id)
        # Over a former connection a lease would be lost, and nobody would ask for it.
        if reader is not None and (reader.peer, reader.incarnation) != (peer, message.incarnation):
            reader = None
        payload: list[Frame] = []
        records: list[Handle | Inline | None] = []
        leases: list[LeaseId | None] = []
        inline_bytes = 0
        granted: Granted = []
        try:
            for each in found:
                if reader is not None and isinstance(each, Handle):
                    lease = self._lease(reader, each, granted)
                    if lease is not None:
                        records.append(each)
                        leases.append(lease)
                        continue
                inline_bytes += 0 if each is None else each.nbytes
                records.append(self._inline(each, payload, inline_bytes))
                leases.append(None)
            answer = Records(message.request_id, self._records.epoch, records, leases)
            self._readers.send(reader, granted, peer, answer, payload)
        except MmcachedError as error:
            self._readers.take_back(reader, granted)
            if not isinstance(error, PeerGone | ChannelFull):
                raise
            log.info("records not sent", reason=str(error))

    def _lease(self, reader: Reader[str], handle: Handle, granted: Granted) -> LeaseId | None:
        try:
            return self._readers.grant(reader, handle, granted)
        except PeerGone:  # the client takes no leases any more, but may read frames
            return None

    def _inline(self, found: Found, payload: list[Frame], num_bytes: int) -> Inline | None:
        """Append the frames of a record, and say where they are; None if there is none, or no room for it."""
        if found is None:
            return None
        if payload and num_bytes > MAX_INLINE_BYTES:
            self.num_withheld += 1
            return None
        frames = self._records.frames(found) if isinstance(found, Handle) else found.frames()
        self.num_inline += 1
        payload.extend(frames)
        return Inline(len(payload) - len(frames), len(frames))
