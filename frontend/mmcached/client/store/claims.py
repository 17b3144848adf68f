"""Claims on keys that have no record: `Claim` (this client computes it) and `Pending` (another caller does).

    claim_many ──> Hit       the key has a record
               ──> Claim     compute the record, here or in another process, and put it; or drop the claim
               ──> Pending   another caller computes it: ask again later

A claim is *exclusive* if the service has registered it; other callers are then told to wait. Without a service, or with
too many claims open, a claim is not exclusive, and several callers may compute the same key: no service would end the
wait of a caller that was told to wait.

Does not use sockets.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mmcached.wire.errors import InvalidRequest
from mmcached.wire.handle import RingAnnouncement
from mmcached.wire.messages.frontend import MAX_COST_S


@dataclass(frozen=True, slots=True)
class Grant:
    """The right to compute the record of a key, with the frontend that granted it.

    Attributes:
        client_id: Client that holds the claim.
        token: Id of the claim at the frontend; 0 if the claim is not exclusive.
        store_epoch: Store epoch at the time of the grant.
        ring: Ring of the store when the claim was granted.
        at: Time of the grant, of `time.monotonic`.
        num_together: Claims that were granted in one call; each takes an equal share of the time.
    """

    client_id: str
    token: int
    store_epoch: int
    ring: RingAnnouncement | None
    at: float = field(default_factory=time.monotonic)
    num_together: int = 1


@dataclass(frozen=True, slots=True)
class Pending:
    """A key whose record is being computed, possibly by this client; ask again later.

    It ends with a record, with the death or the `drop` of the claim's owner, or after `limits.claim_timeout_s`.
    """

    key: str


class Claim:
    """A key to compute: `put` it with `claim=`, let another process put it, or `drop` the claim.

    Attributes:
        key: Key of the record.
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
        """Whether other callers that ask for the key wait for this claim to end, as far as this client knows."""
        return self._grant is not None and self._grant.token != 0

    @property
    def store_epoch(self) -> int | None:
        """Store epoch at the time of the claim; None once it has ended, or without a service."""
        return None if self._grant is None else self._grant.store_epoch

    def cost_s(self) -> float:
        """Return the seconds that this claim has taken so far; 0.0 once it has ended."""
        grant = self._grant
        return 0.0 if grant is None else min((time.monotonic() - grant.at) / grant.num_together, MAX_COST_S)

    def drop(self) -> None:
        """Give the claim up, so that another caller can compute the record.

        Does not wait, and has no effect once the claim has ended.
        """
        grant, self._grant = self._grant, None
        if grant is not None and grant.token and self._drop is not None:
            self._drop(grant)

    def take(self) -> Grant | None:
        """Return the grant and clear it, for the put that ends the claim; None on a second call."""
        grant, self._grant = self._grant, None
        return grant


def checked_claim(claim: Any, key: str) -> Claim | None:
    """Check the `claim` argument of a put of `key`.

    Raises:
        InvalidRequest: It is not a `Claim`, or is a claim on another key.
    """
    if claim is None:
        return None
    if not isinstance(claim, Claim):
        raise InvalidRequest("claim", type(claim).__name__, "a Claim, as `claim_many` returns it")
    if claim.key != key:
        raise InvalidRequest("claim", claim.key, f"a claim of the key that is put, {key!r}")
    return claim
