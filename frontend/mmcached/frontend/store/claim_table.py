"""Chooses which client computes a record that several clients lack, so that it is computed once. Sans I/O.

    ask ──> no claim yet: the asker becomes the owner and gets a token
      └───> claimed: the asker waits        (or is refused: too many are open)

    ask_many ─> the same for many keys, without waiting and without refusals

    the key has a record    finish: all waiters are answered with it, whichever client has put it
    the owner drops it      its token is void, and the first waiter gets a new one
    the owner disconnects   as if it dropped the claim; its own waits end without an answer
    a new epoch             as if every owner dropped its claim: they compute with outdated weights
    a waiter's deadline     that waiter is removed
    a claim's own deadline  as if the owner dropped it

A claim belongs to one connection of its client: messages of an earlier connection may be lost, perhaps the very message
that granted the claim. A token is void after its claim has ended, but a client may still send it; tokens are random, so
that a void one never matches another claim.

Invariants: a key has at most one owner; a key with waiters has an owner; each waiter is removed once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from mmcached.wire.errors import RemoteProtocolError, ServiceUnavailable
from mmcached.wire.messages.frontend import ClaimRecord

NO_CLAIM = 0
"""Token value that stands for no claim."""


def random_token() -> int:
    """Return 62 random bits, never `NO_CLAIM`."""
    return secrets.randbelow(2**62 - 1) + 1


@dataclass(frozen=True, slots=True)
class ClaimWaiter:
    """An open request for a record: the connection it came over, and its deadline."""

    peer: bytes
    message: ClaimRecord
    deadline: float

    @property
    def client_id(self) -> str:
        return self.message.client_id

    @property
    def request(self) -> tuple[str, int]:
        return self.message.client_id, self.message.request_id


@dataclass(frozen=True, slots=True)
class ClaimTransfer:
    """A claim that passes to `owner`, which must be told to compute."""

    owner: ClaimWaiter
    token: int


@dataclass(slots=True)
class _Claim:
    name: str
    token: int
    owner: ClaimWaiter
    deadline: float
    waiters: list[ClaimWaiter] = field(default_factory=list)


class ClaimTable:
    """The claims of all clients, by the name of the record (see `store_keys`).

    Args:
        max_open, max_per_client: Maximum number of claims and waits together, in total and per client.
        clock: Monotonic time in seconds.

    Attributes:
        num_claims, num_waits: Number of claims granted and waits begun; they never decrease.
        on_end: Called with the name of each record whose claim ended without a record and without a next owner.
    """

    def __init__(
        self,
        *,
        max_open: int,
        max_per_client: int,
        claim_timeout_s: float,
        clock: Callable[[], float],
        new_token: Callable[[], int] = random_token,
    ) -> None:
        self._max_open = max_open
        self._max_per_client = max_per_client
        self._claim_timeout_s = claim_timeout_s
        self._clock = clock
        self._new_token = new_token
        self._claims: dict[str, _Claim] = {}
        self.num_claims = 0
        self.num_waits = 0
        self.on_end: Callable[[str], object] = lambda name: None

    @property
    def num_computing(self) -> int:
        return len(self._claims)

    @property
    def num_waiting(self) -> int:
        return sum(len(claim.waiters) for claim in self._claims.values())

    def clients(self) -> set[str]:
        return {one.client_id for one in self._all()}

    def has(self, name: str) -> bool:
        """Return whether a client has a claim on a record."""
        return name in self._claims

    def ask(self, name: str, waiter: ClaimWaiter) -> int | None:
        """Claim a missing record, or wait for its owner.

        Returns:
            The token of the asker, which must compute the record; None: it waits for the owner.

        Raises:
            ServiceUnavailable: Too many claims and waits are open, in total or of this client.
            RemoteProtocolError: The same request waits already.
        """
        if self.num_computing + self.num_waiting >= self._max_open:
            raise ServiceUnavailable(f"{self._max_open} claims and waits are open (max_num_requests); try again later")
        num_own = sum(one.client_id == waiter.client_id for one in self._all())
        if num_own >= self._max_per_client:
            reason = f"this client has {num_own} claims and waits (limits.max_claims_per_client); try again later"
            field = "limits.max_claims_per_client"
            raise ServiceUnavailable(reason, field=field, value=num_own + 1, limit=self._max_per_client)
        if any(one.request == waiter.request for one in self._waiters()):
            raise RemoteProtocolError(f"request {waiter.message.request_id} of this client waits already", "request_id")
        claim = self._claims.get(name)
        if claim is None:
            return self._grant(name, waiter).token
        claim.waiters.append(waiter)
        self.num_waits += 1
        return None

    def ask_many(self, names: list[str], owner: ClaimWaiter) -> list[int | None]:
        """Claim missing records without waiting for those that are claimed.

        Returns:
            For each name: the token of the asker, which must compute it; `NO_CLAIM`: too many claims are open, the
            asker may compute it without a claim; None: another client computes it.
        """
        num_open = self.num_computing + self.num_waiting
        num_own = sum(one.client_id == owner.client_id for one in self._all())
        room = min(self._max_open - num_open, self._max_per_client - num_own)
        tokens: list[int | None] = []
        for name in names:
            if name in self._claims:
                tokens.append(None)
            elif room <= 0:
                tokens.append(NO_CLAIM)
            else:
                room -= 1
                tokens.append(self._grant(name, owner).token)
        return tokens

    def check_token(self, token: int, client_id: str, name: str) -> None:
        """Check a token that a client sent; accepts a token whose claim has ended.

        Raises:
            RemoteProtocolError: The token belongs to another client or another key.
        """
        claim = self._own_claim(token, client_id)
        if claim is not None and claim.name != name:
            raise RemoteProtocolError("this token is for another key", "claim")

    def finish(self, name: str) -> list[ClaimWaiter]:
        """End the claim of a record that was put, by any client; return its waiters."""
        claim = self._claims.pop(name, None)
        return [] if claim is None else claim.waiters

    def drop(self, token: int, client_id: str) -> list[ClaimTransfer]:
        """End the claim of an owner that will not compute; a void token changes nothing.

        Returns:
            The next owner: at most one, here and in all methods below at most one per key.

        Raises:
            RemoteProtocolError: The token belongs to another client.
        """
        claim = self._own_claim(token, client_id)
        return self._pass_on(lambda one: one is claim)

    def leave(self, client_id: str, *, but_over: bytes | None = None) -> list[ClaimTransfer]:
        """End the waits of a disconnected client and pass its claims on; keep those over the connection `but_over`."""

        def has_left(one: ClaimWaiter) -> bool:
            return one.client_id == client_id and one.peer != but_over

        self._forget_waiters(has_left)
        return self._pass_on(lambda claim: has_left(claim.owner))

    def cancel(self, client_id: str, request_id: int) -> list[ClaimTransfer]:
        """End a wait without an answer, or a claim whose owner gave up before it received the grant."""
        request = (client_id, request_id)
        self._forget_waiters(lambda one: one.request == request)
        return self._pass_on(lambda claim: claim.owner.request == request)

    def take_expired(self, now: float) -> list[ClaimWaiter]:
        """Return and remove the waiters whose deadline is over."""
        return self._forget_waiters(lambda one: one.deadline <= now)

    def pass_on_expired(self, now: float) -> list[ClaimTransfer]:
        return self._pass_on(lambda claim: claim.deadline <= now)

    def begin_epoch(self) -> list[ClaimTransfer]:
        return self._pass_on(lambda claim: True)

    def take_all(self) -> list[ClaimWaiter]:
        """Return and remove all waiters, and void all tokens."""
        waiters = list(self._waiters())
        self._claims.clear()
        return waiters

    # ---- internals

    def _all(self) -> Iterator[ClaimWaiter]:
        return (one for claim in self._claims.values() for one in (claim.owner, *claim.waiters))

    def _waiters(self) -> Iterator[ClaimWaiter]:
        return (one for claim in self._claims.values() for one in claim.waiters)

    def _own_claim(self, token: int, client_id: str) -> _Claim | None:
        claim = next((claim for claim in self._claims.values() if claim.token == token), None)
        if claim is not None and claim.owner.client_id != client_id:
            raise RemoteProtocolError("this token is another client's", "claim")
        return claim

    def _grant(self, name: str, owner: ClaimWaiter) -> _Claim:
        claim = self._claims[name] = _Claim(name, self._new_token(), owner, self._clock() + self._claim_timeout_s)
        self.num_claims += 1
        return claim

    def _pass_on(self, is_over: Callable[[_Claim], bool]) -> list[ClaimTransfer]:
        """End claims; the first waiter of each becomes its owner."""
        transfers = []
        for claim in [claim for claim in self._claims.values() if is_over(claim)]:
            del self._claims[claim.name]
            if claim.waiters:
                first, *others = claim.waiters
                following = self._grant(claim.name, first)
                following.waiters = others
                transfers.append(ClaimTransfer(first, following.token))
            else:
                self.on_end(claim.name)
        return transfers

    def _forget_waiters(self, is_gone: Callable[[ClaimWaiter], bool]) -> list[ClaimWaiter]:
        gone = [one for one in self._waiters() if is_gone(one)]
        for claim in self._claims.values():
            claim.waiters = [one for one in claim.waiters if not is_gone(one)]
        return gone
