"""Hands out what a key without a record gets: `Claim`, compute it; `Pending`, somebody else does.

    claim_many ──> Hit       it is there
               ──> Claim     compute it, here or in any other process, and put it; or drop the claim
               ──> Pending   somebody computes it: ask again later

A claim *is exclusive* if the service knows of it; then others are told to wait. Else there are too many claims, or it
is not there, and whoever asked computes, beside others perhaps: a caller who was told to wait would wait for nobody.

Knows nothing of sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mmcached.wire.errors import InvalidRequest
from mmcached.wire.handle import RingAnnouncement


@dataclass(frozen=True, slots=True)
class Grant:
    """A key that is a client's to compute, and which frontend has said so.

    Attributes:
        token: 0 if nobody else is kept from computing it.
    """

    client_id: str
    token: int
    store_epoch: int
    ring: RingAnnouncement | None


@dataclass(frozen=True, slots=True)
class Pending:
    """A key whose record somebody computes just now, this client perhaps; ask again later.

    It ends with a record, with the death of its owner, when that drops it, or after `limits.claim_timeout_s`.
    """

    key: str


class Claim:
    """A key to be computed: `put` it with `claim=`, or have another process put it, or `drop` the claim.

    Attributes:
        key: of the record.
    """

    __slots__ = ("_drop", "_grant", "key")

    def __init__(self, key: str, grant: Grant | None = None, drop: Callable[[Grant], None] | None = None) -> None:
        self.key = key
        self._grant = grant
        self._drop = drop

    def __repr__(self) -> str:
        return f"Claim({self.key!r}, is_exclusive={self.is_exclusive})"

    @property
    def is_exclusive(self) -> bool:
        """Whether others that ask for the key wait for this claim's end, as far as is known here."""
        return self._grant is not None and self._grant.token != 0

    def drop(self) -> None:
        """Let somebody else compute it; after the end of the claim nothing happens. Waits for nobody."""
        grant, self._grant = self._grant, None
        if grant is not None and grant.token and self._drop is not None:
            self._drop(grant)

    def take(self) -> Grant | None:
        """Return what was granted, for the put that ends the claim; the second time None."""
        grant, self._grant = self._grant, None
        return grant


def checked_claim(claim: Any, key: str) -> Claim | None:
    """Return a claim of a key, or None; refuse anything else."""
    if claim is None:
        return None
    if not isinstance(claim, Claim):
        raise InvalidRequest("claim", type(claim).__name__, "a Claim, as `claim_many` returns it")
    if claim.key != key:
        raise InvalidRequest("claim", claim.key, f"a claim of the key that is put, {key!r}")
    return claim
