"""Breadth first through every state of a world, with the shortest way to what is wrong.

Knows nothing of leases: a world is a handful of parts, each an object with a key. Parts whose keys are equal are one
object from then on, so that a state is a few small numbers, and a part is checked once, however many states share it.

Two kinds of fault are found: a state that breaks an invariant, and a state from which no *healing* events lead to rest
(a healing event is one that can be counted on: no kill, no loss, no new work).
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np


class Violation(Exception):
    """An invariant does not hold."""


class _Found(Exception):
    """What is wrong, and the event that has brought it about."""


@dataclass(frozen=True, slots=True)
class Event:
    """What may happen next: `run` does it to a world of its own."""

    label: tuple[object, ...]
    run: Callable[[Any], object]
    is_healing: bool = True

    def not_counted_on(self) -> Event:
        return Event(self.label, self.run, is_healing=False)

    def __str__(self) -> str:
        return " ".join(map(str, self.label))


class Part(Protocol):
    """A part is never changed once a state has it; a world that changes it makes a copy first."""

    def key(self) -> object: ...


class World(Protocol):
    def parts(self) -> Sequence[Part]: ...
    def with_parts(self, parts: Sequence[Any]) -> Self: ...
    def events(self) -> Iterable[Event]: ...
    def check_part(self, part: Any) -> None: ...
    def check(self) -> None: ...
    def settle(self) -> None: ...
    def is_at_rest(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Finding:
    """Attributes:
    violation: None if nothing is wrong.
    trace: the shortest way to it.
    is_exhausted: every state was seen.
    """

    num_states: int
    num_events: int
    seconds: float
    violation: str | None
    trace: tuple[str, ...]
    is_exhausted: bool

    def check(self) -> None:
        """Raises:
        Violation: something is wrong; the text ends with the way to it.
        """
        if self.violation is not None:
            raise Violation("\n  ".join([self.violation, *self.trace]))


class Explorer:
    """One search, from `start`."""

    def __init__(self, start: World, *, limit: int | None = None) -> None:
        self._limit = limit
        self._parts: list[Any] = []
        self._part_numbers: dict[object, int] = {}
        self._states: list[tuple[int, ...]] = []
        self._state_numbers: dict[tuple[int, ...], int] = {}
        self._came_from = array("l")
        self._by_event = array("l")  # which one of that state's
        self._at_rest = bytearray()
        self._healing: tuple[array[int], array[int]] = (array("l"), array("l"))  # edges: from, to
        self._start = start

    def run(self) -> Finding:
        began = time.perf_counter()
        violation: str | None = None
        where, num_events, trace = 0, 0, list[str]()
        queue = deque[int]()
        try:
            queue.append(self._number(self._start, [], (-1, -1))[0])
            while queue and not (self._limit and len(self._states) >= self._limit):
                where = queue.popleft()
                num_events += self._expand(where, queue)
            stuck = None if queue else self._first_stuck()
            if stuck is not None:
                violation = "I2: from here on a lease never comes back, or granting never goes on"
                trace = self._trace(stuck)
        except Violation as error:  # at the start already
            violation = str(error)
        except _Found as found:
            violation, last = found.args
            trace = [*self._trace(where), last]
        seconds = time.perf_counter() - began
        is_exhausted = not queue and violation is None
        return Finding(len(self._states), num_events, seconds, violation, tuple(trace), is_exhausted)

    def _world(self, number: int) -> World:
        return self._start.with_parts([self._parts[part] for part in self._states[number]])

    def _expand(self, number: int, queue: deque[int]) -> int:
        state = self._states[number]
        before = [self._parts[part] for part in state]
        world = self._start.with_parts(before)
        count = 0
        for count, event in enumerate(self._events(world), start=1):
            after = self._start.with_parts(before)
            try:
                event.run(after)
                after.settle()
                reached, is_new = self._number(after, list(zip(before, state, strict=True)), (number, count - 1))
            except Exception as error:  # whatever the product's classes raise here is a finding
                raise _Found(_describe(error), str(event)) from error
            if is_new:
                queue.append(reached)
            if event.is_healing:
                self._healing[0].append(number)
                self._healing[1].append(reached)
        return count

    def _events(self, world: World) -> Iterable[Event]:
        try:
            yield from world.events()
        except Violation as error:
            raise _Found(str(error), "(while it is asked what may happen)") from error

    def _number(self, world: World, before: list[tuple[Any, int]], origin: tuple[int, int]) -> tuple[int, bool]:
        numbers = []
        for index, part in enumerate(world.parts()):
            same = before[index][1] if before and part is before[index][0] else None
            numbers.append(self._number_part(world, index, part) if same is None else same)
        state = tuple(numbers)
        number = self._state_numbers.get(state)
        if number is not None:
            return number, False
        world.check()
        number = len(self._states)
        self._state_numbers[state] = number
        self._states.append(state)
        self._came_from.append(origin[0])
        self._by_event.append(origin[1])
        self._at_rest.append(world.is_at_rest())
        return number, True

    def _number_part(self, world: World, index: int, part: Part) -> int:
        world.check_part(part)  # before two become one: their keys leave out what only saves time
        number = self._part_numbers.setdefault((index, part.key()), len(self._parts))
        if number == len(self._parts):
            self._parts.append(part)
        return number

    def _first_stuck(self) -> int | None:
        """Return the first state from which no healing events lead to one at rest."""
        can_rest = np.frombuffer(self._at_rest, np.uint8).astype(bool)
        sources, targets = (np.array(edges, np.int64) for edges in self._healing)
        num_known = -1
        while num_known != (num_known := int(can_rest.sum())):
            can_rest[sources[can_rest[targets]]] = True
        stuck = np.flatnonzero(~can_rest)
        return int(stuck[0]) if stuck.size else None

    def _trace(self, number: int) -> list[str]:
        labels = list[str]()
        while self._came_from[number] >= 0:
            parent, event = self._came_from[number], self._by_event[number]
            labels.append(str(list(self._world(parent).events())[event]))
            number = parent
        return labels[::-1]


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, Violation) else f"{type(error).__name__}: {error}"
