"""Says what has become of a record that was put: `PutResult`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class PutResult:
    """What has become of a put; true if the key has a record now, or, with `overwrite`, this record.

    >>> bool(PutResult("cat@v1", "kept", 4096)), bool(PutResult("cat@v1", "exists", 4096))
    (True, True)
    >>> bool(PutResult("cat@v1", "refused", 4096, "the service keeps no records (store_gb = 0)"))
    False

    Attributes:
        key: of the record.
        outcome: "kept"; "exists": the key has a record already, and keeps that; "refused": it was not kept, and a key
            that had a record still has that one.
        nbytes: of the record that was put, as it is stored.
        reason: why it was refused, with key, size, and the limit with its setting, or the error of the service; else
            empty.
    """

    key: str
    outcome: Literal["kept", "exists", "refused"]
    nbytes: int
    reason: str = ""

    def __bool__(self) -> bool:
        return self.outcome != "refused"


def refused(key: str, nbytes: int, why: str) -> PutResult:
    """Return the result of a put that was not kept."""
    return PutResult(key, "refused", nbytes, f"{key!r}, {nbytes} bytes: {why}")
