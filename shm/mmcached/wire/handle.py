"""Handles of chunks in a ring, and the announcement of a ring.

Neither gives access by itself: a reader takes a lease before it reads a chunk.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class RingAnnouncement(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A ring's name and size; sent by its writer to each reader."""

    uid: Count
    ring_id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
    epoch: Count
    data_bytes: Count
    num_slots: Count
    max_readers: Count
    index_words: Count = 0

    @property
    def data_name(self) -> str:
        return f"/mmc.{self.uid}.{self.ring_id}.data"

    @property
    def ctl_name(self) -> str:
        return f"/mmc.{self.uid}.{self.ring_id}.ctl"

    def nursery_name(self, nursery: int) -> str:
        return f"/mmc.{self.uid}.{self.ring_id}.nursery{nursery}"


class Handle(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="ring", gc=False):
    """One published chunk, as it was in `generation`.

    Attributes:
        offset, nbytes: Place of the payload in bytes, in the file of its nursery or in the data object.
        nursery: Id of the nursery; 0 for the data object.
    """

    ring_id: str
    epoch: Count
    slot: Count
    generation: Count
    offset: Count
    nbytes: Count
    tenant: str = ""
    nursery: Count = 0

    @property
    def token(self) -> str:
        """Name of the record for other processes of this host; see `mmcached.client.store.tokens`."""
        return f"{self.ring_id}.{self.epoch}.{self.slot}.{self.generation}"
