"""Reasons for which a record is not kept."""

from __future__ import annotations

from enum import StrEnum


class PutRefusal(StrEnum):
    """Why a record is not kept; `RecordStore.text_of` fills the limit into the text."""

    NO_STORE = "the service keeps no records (store_gb = 0)"
    OLD_EPOCH = "it was computed before the last new epoch"
    TOO_LARGE = "it is larger than one record may be: at most {limit} bytes (store_max_object_mb)"
    BEYOND_TENANT_QUOTA = "it is larger than its tenant's quota: {limit} bytes (store_tenant_quota_gb)"
    FULL = "there is no room now: too much of the {limit} bytes is leased (store_gb)"
