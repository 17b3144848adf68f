"""Who computes what, so that a record that several clients lack at once is computed once. Sans I/O.

    ask ──> nobody does: a token, the asker is its owner
      └───> somebody does: the asker waits        (or is refused: too many are open)

    the key has a record    take_waiters: all are answered with it; `finish` ends the claim
    the owner gives up      its token is void, and the first who waits gets one
    the owner is gone       as if it gave up; its own waits end without an answer
    a new epoch             as if every owner gave up: what they compute comes from weights that are no more
    a deadline              that one waits no longer
    a claim's own deadline  as if the owner gave up

A claim belongs to one connection of its client: what was under way over a former one is lost, perhaps the very message
that said who shall compute. A token means nothing after its claim has ended; a client may still bring it, and so it is
drawn at random and never means another claim.

Invariants: a key has at most one owner; a key for which somebody waits has one; each who waits is taken out once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from mmcached.wire.errors import InvariantError, RemoteProtocolError, ServiceUnavailable
from mmcached.wire.messages.frontend import ClaimRecord


def random_token() -> int:
    """Return 62 random bits, never 0: 0 is no claim."""
    return secrets.randbelow(2**62 - 1) + 1


@dataclass(frozen=True, slots=True)
class Asker:
    """One open request for a record: who asked, over which connection, and until when it waits."""

    peer: bytes
    message: ClaimRecord
    deadline: float

    @property
    def client_id(self) -> str:
        return self.message.client_id


@dataclass(frozen=True, slots=True)
class Handover:
    """`asker` has become the owner: tell it to compute."""

    asker: Asker
    token: int


@dataclass(slots=True)
class _Claim:
    name: str
    token: int
    owner: Asker
    deadline: float = 0.0
    waiters: list[Asker] = field(default_factory=list)


class Computations:
    """The claims of all clients, by the name of the record (see `store_keys`).

    Args:
        max_open: claims and waits together; beyond it nobody may ask.
        max_per_client: those of one client.
        claim_timeout_s: from a claim to its end.
        clock: monotonic seconds.
    Attributes:
        num_claims, num_waits: granted, and begun; they only rise.
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
        self._token_to_name: dict[int, str] = {}
        self._num_waiting = 0
        self.num_claims = 0
        self.num_waits = 0

    @property
    def num_computing(self) -> int:
        return len(self._claims)

    @property
    def num_waiting(self) -> int:
        return self._num_waiting

    def clients(self) -> set[str]:
        """Return who owns a claim or waits."""
        return {asker.client_id for asker in self._askers()}

    def ask(self, name: str, asker: Asker) -> int | None:
        """Ask for a record that is not there.

        Returns:
            the token of the asker, who shall compute it; None: it waits for whoever does.
        Raises:
            ServiceUnavailable: too many are open, of all clients or of this one.
            RemoteProtocolError: this very request waits already.
        """
        if len(self._claims) + self._num_waiting >= self._max_open:
            raise ServiceUnavailable(f"{self._max_open} claims and waits are open (max_num_requests); try again later")
        num_own = sum(each.client_id == asker.client_id for each in self._askers())
        if num_own >= self._max_per_client:
            reason = f"this client has {num_own} claims and waits (limits.max_claims_per_client); try again later"
            field = "limits.max_claims_per_client"
            raise ServiceUnavailable(reason, field=field, value=num_own + 1, limit=self._max_per_client)
        if self._find(asker.client_id, asker.message.request_id) is not None:
            raise RemoteProtocolError(f"request {asker.message.request_id} of this client waits already", "request_id")
        claim = self._claims.get(name)
        if claim is None:
            return self._own(_Claim(name, 0, asker)).token
        claim.waiters.append(asker)
        self._num_waiting += 1
        self.num_waits += 1
        return None

    def check_token(self, token: int, client_id: str, name: str) -> None:
        """Judge a token that a client brings; one whose claim has ended is nobody's.

        Raises:
            RemoteProtocolError: it is another client's, or for another key.
        """
        claim = self._claim_of(token)
        if claim is not None and (claim.owner.client_id, claim.name) != (client_id, name):
            raise RemoteProtocolError("this token is another client's, or for another key", "claim")

    def take_waiters(self, name: str) -> list[Asker]:
        """Return and forget who waits for a record: it has come."""
        claim = self._claims.get(name)
        if claim is None:
            return []
        waiters, claim.waiters = claim.waiters, []
        self._num_waiting -= len(waiters)
        return waiters

    def finish(self, token: int, client_id: str) -> None:
        """End a claim whose waiters have been taken; a token that is void changes nothing.

        Raises:
            RemoteProtocolError: it is another client's.
        """
        claim = self._own_claim(token, client_id)
        if claim is not None and not claim.waiters:
            self._end(claim)

    def drop(self, token: int, client_id: str) -> Handover | None:
        """The owner will not compute it; return who shall instead. A token that is void changes nothing.

        Raises:
            RemoteProtocolError: it is another client's.
        """
        claim = self._own_claim(token, client_id)
        return None if claim is None else self._pass_on(claim)

    def leave(self, client_id: str, *, but_over: bytes | None = None) -> list[Handover]:
        """A client is gone, or all its connections but one: its waits end, and its claims pass on."""

        def has_left(asker: Asker) -> bool:
            return asker.client_id == client_id and asker.peer != but_over

        for claim in self._claims.values():
            self._forget_waiters(claim, has_left)
        left = [claim for claim in self._claims.values() if has_left(claim.owner)]
        return [handover for claim in left if (handover := self._pass_on(claim))]

    def cancel(self, client_id: str, request_id: int) -> Handover | None:
        """End a wait without an answer, or a claim whose owner has given up before it heard of it.

        Returns:
            who shall compute instead; a request that neither waits nor owns changes nothing.
        """
        found = self._find(client_id, request_id)
        for claim in list(self._claims.values()):
            self._forget_waiters(claim, lambda asker: asker is found)
            owner = claim.owner
            if (owner.client_id, owner.message.request_id) == (client_id, request_id):
                return self._pass_on(claim)
        return None

    def take_expired(self, now: float) -> list[Asker]:
        """Return and forget those whose deadline is over."""
        expired = [asker for asker in self._waiters() if asker.deadline <= now]
        for claim in self._claims.values():
            self._forget_waiters(claim, lambda asker: asker.deadline <= now)
        return expired

    def pass_on_expired(self, now: float) -> list[Handover]:
        """End the claims whose time is over; return who shall compute instead."""
        expired = [claim for claim in self._claims.values() if claim.deadline <= now]
        return [handover for claim in expired if (handover := self._pass_on(claim))]

    def begin_epoch(self) -> list[Handover]:
        """Void all tokens; return who shall compute anew, one for each key that somebody waits for."""
        return [handover for claim in list(self._claims.values()) if (handover := self._pass_on(claim))]

    def take_all(self) -> list[Asker]:
        """Return and forget all who wait, and void all tokens."""
        waiters = list(self._waiters())
        self._claims.clear()
        self._token_to_name.clear()
        self._num_waiting = 0
        return waiters

    def check_integrity(self) -> None:
        """Raises:
        InvariantError: the books contradict each other.
        """
        if {claim.token: claim.name for claim in self._claims.values()} != self._token_to_name:
            raise InvariantError("tokens and claims differ")
        if any(name != claim.name for name, claim in self._claims.items()):
            raise InvariantError("a claim is filed under another key")
        requests = [(asker.client_id, asker.message.request_id) for asker in self._waiters()]
        if len(requests) != self._num_waiting or len(set(requests)) != len(requests):
            raise InvariantError(f"{self._num_waiting} wait, listed are {requests}")

    # ---- how

    def _askers(self) -> Iterator[Asker]:
        """Yield all owners and all who wait."""
        return (asker for claim in self._claims.values() for asker in (claim.owner, *claim.waiters))

    def _waiters(self) -> Iterator[Asker]:
        return (asker for claim in self._claims.values() for asker in claim.waiters)

    def _find(self, client_id: str, request_id: int) -> Asker | None:
        wanted = (client_id, request_id)
        return next((asker for asker in self._waiters() if (asker.client_id, asker.message.request_id) == wanted), None)

    def _claim_of(self, token: int) -> _Claim | None:
        name = self._token_to_name.get(token)
        return None if name is None else self._claims[name]

    def _own_claim(self, token: int, client_id: str) -> _Claim | None:
        claim = self._claim_of(token)
        if claim is not None:
            self.check_token(token, client_id, claim.name)
        return claim

    def _own(self, claim: _Claim) -> _Claim:
        claim.token = self._new_token()
        claim.deadline = self._clock() + self._claim_timeout_s
        self._claims[claim.name] = claim
        self._token_to_name[claim.token] = claim.name
        self.num_claims += 1
        return claim

    def _end(self, claim: _Claim) -> None:
        del self._token_to_name[claim.token]
        del self._claims[claim.name]

    def _pass_on(self, claim: _Claim) -> Handover | None:
        """End the owner's claim; the first who waits becomes the owner."""
        self._end(claim)
        if not claim.waiters:
            return None
        first, *others = claim.waiters
        self._num_waiting -= 1
        return Handover(first, self._own(_Claim(claim.name, 0, first, waiters=others)).token)

    def _forget_waiters(self, claim: _Claim, is_gone: Callable[[Asker], bool]) -> None:
        kept = [asker for asker in claim.waiters if not is_gone(asker)]
        self._num_waiting -= len(claim.waiters) - len(kept)
        claim.waiters = kept
