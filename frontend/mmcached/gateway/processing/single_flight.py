"""Has equal work done once at a time, however many requests wait for it. Books only: no threads, no clock.

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

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mmcached.wire.errors import InvariantError

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Flight(Generic[T]):
    """Work on one key and its waiters, in the order of joining."""

    waiters: dict[FlightWaiter[T], None] = field(default_factory=dict)
    outcome: tuple[T] | None = None
    is_used: bool = False


@dataclass(slots=True, eq=False)
class FlightWaiter(Generic[T]):
    """The work that one request has joined, by key, in the order of joining."""

    flights: dict[str, Flight[T]] = field(default_factory=dict, init=False)

    @property
    def is_complete(self) -> bool:
        return not self.in_work()

    def in_work(self) -> set[Flight[T]]:
        """Return the work that has not landed."""
        return {flight for flight in self.flights.values() if flight.outcome is None}

    def outcomes(self) -> dict[str, T]:
        """Return the landed outcomes by key."""
        landed = ((key, flight.outcome) for key, flight in self.flights.items())
        return {key: outcome[0] for key, outcome in landed if outcome is not None}


@dataclass(frozen=True, slots=True)
class Landed(Generic[T]):
    """Result of the end of one key's work.

    Attributes:
        flight: The work with its outcome, if a request waits for it.
        start_again: Whether it was begun before the last flush, and a request waits.
        unclaimed: The outcome, if no request waits for it.
    """

    flight: Flight[T] | None = None
    start_again: bool = False
    unclaimed: tuple[T] | None = None


@dataclass(frozen=True, slots=True)
class Left(Generic[T]):
    """Work of which a leaving request was the last waiter.

    Attributes:
        unused: `(key, outcome)` of landed work that no request has used.
        in_work: Keys without waiters now; they may be withdrawn.
    """

    unused: list[tuple[str, T]]
    in_work: list[str]


class SingleFlight(Generic[T]):
    """Key -> work and its waiters. An outcome of any type, an error too, goes to all of them.

    Attributes:
        generation: Number of flushes so far; each work belongs to the one in which it was begun.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._flights: dict[str, Flight[T]] = {}

    def __contains__(self, key: object) -> bool:
        """Return whether a key is in work or has landed, so that joining it starts nothing."""
        return key in self._flights

    def __iter__(self) -> Iterator[str]:
        return iter(self._flights)

    @property
    def num_in_work(self) -> int:
        return sum(flight.outcome is None for flight in self._flights.values())

    def join(self, waiter: FlightWaiter[T], key: str) -> bool:
        """Wait for a key; joining twice changes nothing. Return whether its work must be started."""
        is_new = key not in self._flights
        flight = self._flights.setdefault(key, Flight())
        flight.waiters[waiter] = None
        waiter.flights[key] = flight
        return is_new

    def waiters(self, key: str) -> list[FlightWaiter[T]]:
        """Return the requests that have joined a key, in the order of joining."""
        return list(self._flights[key].waiters) if key in self._flights else []

    def landed(self) -> list[tuple[str, T]]:
        """Return keys and outcomes of all landed work that a request still waits for."""
        return [(key, flight.outcome[0]) for key, flight in self._flights.items() if flight.outcome is not None]

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
            return Landed(unclaimed=None if is_stale else (outcome,))
        if is_stale:
            return Landed(start_again=True)
        flight.outcome = (outcome,)
        return Landed(flight)

    def leave(self, waiter: FlightWaiter[T], *, has_used: bool) -> Left[T]:
        """End a request's waiting; a request that waits for nothing changes nothing.

        Args:
            has_used: Whether it has passed its outcomes on, for other requests to find.
        """
        left: Left[T] = Left([], [])
        flights, waiter.flights = waiter.flights, {}
        for key, flight in flights.items():
            del flight.waiters[waiter]
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
        """Forget a key without waiters whose work will not be done."""
        flight = self._flights.pop(key)
        if flight.waiters or flight.outcome is not None:
            raise InvariantError(f"{key} was withdrawn, but is waited for or has landed")

    def flush(self) -> list[str]:
        """Discard the outcomes of all work begun until now; return the keys whose work must be started again."""
        self.generation += 1
        again = [key for key, flight in self._flights.items() if flight.outcome is not None]
        for key in again:
            self._flights[key].outcome = None
            self._flights[key].is_used = False
        return again
