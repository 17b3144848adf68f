"""The result of a put: `PutResult`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class PutResult:
    """The result of a put; true if the key has a record now, or, with `overwrite`, this record.

    >>> bool(PutResult("cat@v1", "kept", 4096)), bool(PutResult("cat@v1", "exists", 4096))
    (True, True)
    >>> bool(PutResult("cat@v1", "refused", 4096, "the service keeps no records (store_gb = 0)"))
    False

    Attributes:
        key: Key of the record.
        outcome: "kept"; "exists": the key already had a record, and keeps it; "refused": the record was not kept, and a
            key that had a record still has that record.
        nbytes: Size of the put record as stored.
        reason: Why it was refused: key, size, and the limit with its setting, or the error of the service; empty for
            other outcomes.
    """

    key: str
    outcome: Literal["kept", "exists", "refused"]
    nbytes: int
    reason: str = ""

    def __bool__(self) -> bool:
        return self.outcome != "refused"


def refused(key: str, nbytes: int, why: str) -> PutResult:
    return PutResult(key, "refused", nbytes, f"{key!r}, {nbytes} bytes: {why}")
