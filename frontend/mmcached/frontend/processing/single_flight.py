"""Has equal work done once at a time, however many requests wait for it. Books only: no threads, no clock.

    join ──> in work ──land──> landed ──the last waiter leaves──> gone
                │                 │
                │                 └──flush──> in work again: what landed was made before the flush
                ├──land, made before the last flush──> in work again, or gone if nobody waits
                └──withdraw, land: nobody waits──> gone

Work that all have left goes on, unless its owner could `withdraw` it: others may still join. What lands then is
unclaimed, and so is what its waiters leave without having used it: worth keeping, for it is paid for.

Invariants: a key is in work at most once; a waiter has what it has joined until it leaves, whatever the outcome;
nothing that was begun before a flush is handed out after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mmcached.wire.errors import InvariantError

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Flight(Generic[T]):
    """One work, and who waits for it, in the order of joining."""

    waiters: dict[Waiter[T], None] = field(default_factory=dict)
    outcome: tuple[T] | None = None
    is_used: bool = False


@dataclass(slots=True, eq=False)
class Waiter(Generic[T]):
    """What one request has joined, by key, in the order of joining."""

    flights: dict[str, Flight[T]] = field(default_factory=dict, init=False)

    @property
    def is_complete(self) -> bool:
        return not self.in_work()

    def in_work(self) -> set[Flight[T]]:
        """Return those that have not landed."""
        return {flight for flight in self.flights.values() if flight.outcome is None}

    def outcomes(self) -> dict[str, T]:
        """Return what has landed."""
        landed = ((key, flight.outcome) for key, flight in self.flights.items())
        return {key: outcome[0] for key, outcome in landed if outcome is not None}


@dataclass(frozen=True, slots=True)
class Landed(Generic[T]):
    """What became of work that has ended.

    Attributes:
        flight: has the outcome, for those who wait for it.
        start_again: it was begun before the last flush, and somebody waits.
        unclaimed: the outcome, if nobody waits for it.
    """

    flight: Flight[T] | None = None
    start_again: bool = False
    unclaimed: tuple[T] | None = None


@dataclass(frozen=True, slots=True)
class Left(Generic[T]):
    """What a request was the last to wait for.

    Attributes:
        unused: `(key, outcome)` of what has landed and nobody has used.
        in_work: keys that nobody waits for now; they may be withdrawn.
    """

    unused: list[tuple[str, T]]
    in_work: list[str]


class SingleFlight(Generic[T]):
    """Key -> work and its waiters. An outcome of any type, an error too, goes to all of them.

    Attributes:
        generation: how many flushes there were; work is begun in one.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._flights: dict[str, Flight[T]] = {}

    def __contains__(self, key: object) -> bool:
        """Return whether a key is in work or has landed: to join it starts nothing."""
        return key in self._flights

    def __iter__(self) -> Iterator[str]:
        return iter(self._flights)

    @property
    def num_in_work(self) -> int:
        return sum(flight.outcome is None for flight in self._flights.values())

    def join(self, waiter: Waiter[T], key: str) -> bool:
        """Wait for a key; joining twice changes nothing. Return whether its work has to be started."""
        is_new = key not in self._flights
        flight = self._flights.setdefault(key, Flight())
        flight.waiters[waiter] = None
        waiter.flights[key] = flight
        return is_new

    def waiters(self, key: str) -> list[Waiter[T]]:
        """Return who has joined a key, in the order of joining."""
        return list(self._flights[key].waiters) if key in self._flights else []

    def landed(self) -> list[tuple[str, T]]:
        """Return keys and outcomes of all that has landed, and is still waited for."""
        return [(key, flight.outcome[0]) for key, flight in self._flights.items() if flight.outcome is not None]

    def land(self, key: str, generation: int, outcome: T) -> Landed[T]:
        """The work on a key has ended.

        Args:
            generation: what `generation` was when the work was begun.
        Raises:
            InvariantError: the key is not in work.
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

    def leave(self, waiter: Waiter[T], *, has_used: bool) -> Left[T]:
        """A request waits no more. One that waits for nothing changes nothing.

        Args:
            has_used: it has taken its outcomes to where others will find them.
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
        """The work on a key that nobody waits for will not be done."""
        flight = self._flights.pop(key)
        if flight.waiters or flight.outcome is not None:
            raise InvariantError(f"{key} was withdrawn, but is waited for or has landed")

    def flush(self) -> list[str]:
        """Let nothing out that was begun until now; return the keys whose work has to be started again."""
        self.generation += 1
        again = [key for key, flight in self._flights.items() if flight.outcome is not None]
        for key in again:
            self._flights[key].outcome = None
            self._flights[key].is_used = False
        return again

    def check_integrity(self) -> None:
        """Raise `InvariantError` if a waiter does not have what it waits for, or something has landed for nobody."""
        for key, flight in self._flights.items():
            if any(waiter.flights.get(key) is not flight for waiter in flight.waiters):
                raise InvariantError(f"{key}: somebody waits for it who has not joined it")
            if flight.outcome is not None and not flight.waiters:
                raise InvariantError(f"{key} has landed, and nobody waits for it")
