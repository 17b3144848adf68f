"""The settings of a ring, as keyword arguments of `RingWriter` and of the calls that make one."""

from __future__ import annotations

from typing import Required, TypedDict

from mmcached.wire.errors import InvalidRequest


class RingSettings(TypedDict, total=False):
    """Settings of a ring.

    Attributes:
        max_object_bytes: The largest accepted payload.
        reader_quota_bytes: Bytes that one reader may hold under lease; None for no limit.
        shared_quota_bytes: Bytes that all readers together may hold under leases that they take by themselves; the
            readers observe this limit.
        has_checksums: Store a crc32 of each payload in its slot; readers then check every view (about 4 GB/s).
        tenant: Stored in every handle.
        num_nursery_slots: The number of slots, the last ones, for records in nurseries.
    """

    max_object_bytes: Required[int]
    reader_quota_bytes: int | None
    shared_quota_bytes: int | None
    has_checksums: bool
    tenant: str
    num_nursery_slots: int


def check_settings(settings: RingSettings) -> None:
    """Raise InvalidRequest if a number of bytes is less than 1."""
    for field, nbytes in (
        ("max_object_bytes", settings["max_object_bytes"]),
        ("reader_quota_bytes", settings.get("reader_quota_bytes")),
    ):
        if nbytes is not None and nbytes < 1:
            raise InvalidRequest(field, nbytes, "must be at least 1")
