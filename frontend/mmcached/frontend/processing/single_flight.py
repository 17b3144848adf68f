"""Does equal work once at a time, however many requests wait for it. State only: no threads, no clock.

    join ──> in work ──land──> landed ──the last waiter leaves──> gone
                │                 │
                │                 └──flush──> in work again: the outcome is older than the flush
                ├──land, begun before the last flush──> in work again, or gone without waiters
                └──withdraw, land without waiters──> gone

Work goes on after all its requests have left, unless its owner can `withdraw` it: others may still join. An outcome
that no request has used is returned to the owner, which may keep it.

Invariants: a key is in work at most once; a request waits for the keys it has joined until it leaves, which it does
exactly once; an outcome of work begun before a flush is not returned after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mmcached.wire.errors import InvariantError

T = TypeVar("T")


@dataclass(slots=True)
class _Flight(Generic[T]):
    waiters: dict[int, None] = field(default_factory=dict)  # in the order in which they joined
    outcome: tuple[T] | None = None
    is_used: bool = False


@dataclass(frozen=True, slots=True)
class Landed(Generic[T]):
    """Result of the end of one key's work.

    Attributes:
        complete: Requests that now wait for no other key.
        start_again: Whether it was begun before the last flush, and a request waits.
        unclaimed: The outcome, if no request waits for it.
    """

    complete: list[int]
    start_again: bool = False
    unclaimed: tuple[T] | None = None


@dataclass(frozen=True, slots=True)
class Left(Generic[T]):
    """Keys for which a request was the last to wait.

    Attributes:
        unused: `(key, outcome)` of landed keys that no request has used.
        in_work: Keys that no request waits for now; they may be withdrawn.
    """

    unused: list[tuple[str, T]]
    in_work: list[str]


class SingleFlight(Generic[T]):
    """Work and its waiting requests, by key. An outcome may have any type; an error, too, goes to all of them.

    Attributes:
        generation: Number of flushes so far; work belongs to the generation in which it was begun.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._flights: dict[str, _Flight[T]] = {}
        self._keys_of: dict[int, dict[str, None]] = {}

    def __contains__(self, key: object) -> bool:
        """Return whether a key is in work or has landed, so that joining it starts nothing."""
        return key in self._flights

    @property
    def num_waiting(self) -> int:
        return len(self._keys_of)

    @property
    def num_in_work(self) -> int:
        return sum(flight.outcome is None for flight in self._flights.values())

    def join(self, request: int, key: str) -> bool:
        """Wait for a key; joining twice changes nothing. Return whether its work must be started."""
        is_new = key not in self._flights
        self._flights.setdefault(key, _Flight()).waiters[request] = None
        self._keys_of.setdefault(request, {})[key] = None
        return is_new

    def has_joined(self, request: int, key: str) -> bool:
        return key in self._keys_of.get(request, ())

    def landed(self) -> list[tuple[str, T]]:
        """Return keys and outcomes of all landed work that a request still waits for."""
        return [(key, flight.outcome[0]) for key, flight in self._flights.items() if flight.outcome is not None]

    def is_waited_for(self, key: str) -> bool:
        """Return whether a request has joined a key."""
        return key in self._flights and bool(self._flights[key].waiters)

    def is_complete(self, request: int) -> bool:
        return all(self._flights[key].outcome is not None for key in self._keys_of.get(request, ()))

    def outcomes(self, request: int) -> dict[str, T]:
        """Return the landed outcomes of a request's keys, in the order of landing."""
        landed = ((key, self._flights[key].outcome) for key in self._keys_of.get(request, ()))
        return {key: outcome[0] for key, outcome in landed if outcome is not None}

    def land(self, key: str, generation: int, outcome: T) -> Landed[T]:
        """Record the outcome of a key's work.

        Args:
            generation: Value of `generation` when the work was begun.
        Raises:
            InvariantError: The key is not in work.
        """
        flight = self._flights.get(key)
        if flight is None or flight.outcome is not None:
            raise InvariantError(f"{key} has landed, but is not in work")
        is_stale = generation != self.generation
        if not flight.waiters:
            del self._flights[key]
            return Landed([], unclaimed=None if is_stale else (outcome,))
        if is_stale:
            return Landed([], start_again=True)
        flight.outcome = (outcome,)
        return Landed([request for request in flight.waiters if self.is_complete(request)])

    def leave(self, request: int, *, has_used: bool) -> Left[T]:
        """End a request's waiting; a request that waits for nothing changes nothing.

        Args:
            has_used: Whether it has passed its outcomes on, for other requests to find.
        """
        left: Left[T] = Left([], [])
        for key in self._keys_of.pop(request, ()):
            flight = self._flights[key]
            del flight.waiters[request]
            flight.is_used |= has_used
            if flight.waiters:
                continue
            if flight.outcome is None:
                left.in_work.append(key)
                continue
            if not flight.is_used:
                left.unused.append((key, flight.outcome[0]))
            del self._flights[key]
        return left

    def withdraw(self, key: str) -> None:
        """Remove a key that no request waits for: its work will not be done."""
        flight = self._flights.pop(key)
        if flight.waiters or flight.outcome is not None:
            raise InvariantError(f"{key} was withdrawn, but is waited for or has landed")

    def flush(self) -> list[str]:
        """Invalidate all outcomes of work begun until now; return the keys whose work must be started again."""
        self.generation += 1
        again = [key for key, flight in self._flights.items() if flight.outcome is not None]
        for key in again:
            self._flights[key].outcome = None
            self._flights[key].is_used = False
        return again

    def check_integrity(self) -> None:
        waits = {(request, key) for request, keys in self._keys_of.items() for key in keys}
        if waits != {(request, key) for key, flight in self._flights.items() for request in flight.waiters}:
            raise InvariantError("requests and flights disagree on who waits for what")
        idle = [key for key, flight in self._flights.items() if flight.outcome is not None and not flight.waiters]
        if idle:
            raise InvariantError(f"landed, and nobody waits for it: {idle[:3]}")
