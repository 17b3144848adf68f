"""Lets open requests wait. A request is a verb: a generator that yields a `Wait` and is resumed when the wait is over.

    yield Wait({flight, flight}) ──wake of each──┐
                         └──its deadline─────────┴──> ready, in the order of waking ──> the verb is resumed

A verb must check again after it was resumed: a wait also ends at its deadline. A verb that is closed while it waits
gives back in its `finally` blocks everything that it has joined; no other part keeps a reference to it.

Belongs to the loop's thread. Invariant: a request has one wait at a time, so it is resumed once for it.

>>> waits: Waits[str] = Waits()
>>> room, item = object(), object()
>>> waits.add(Wait({item}), "first")
>>> waits.add(Wait({item, room}), "second")
>>> waits.wake(room)
>>> waits.take_ready() is None
True
>>> waits.wake(item)
>>> [waits.take_ready() for _ in range(3)]
['first', 'second', None]
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, KeysView
from dataclasses import dataclass, field
from math import inf
from typing import Any, Generic, TypeVar

WaiterT = TypeVar("WaiterT")
ResultT = TypeVar("ResultT")


@dataclass(slots=True, eq=False)
class Wait:
    """A set of events that a request waits for, with a deadline.

    Attributes:
        keys: Events that have not happened yet; if empty, only `until` ends the wait.
        until: Deadline in seconds on the frontend's clock.
    """

    keys: set[Hashable] = field(default_factory=set)
    until: float = inf


Verb = Generator[Wait, Any, ResultT]
"""A generator that serves a request; it is sent the last message of an engine if it has waited for that, else None."""


class Waits(Generic[WaiterT]):
    """All waits of one frontend, each with its waiting request."""

    def __init__(self) -> None:
        self._waiting: dict[Wait, WaiterT] = {}
        self._by_key: dict[Hashable, dict[Wait, None]] = {}
        self._ready: dict[Wait, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, wait: object) -> bool:
        return wait in self._waiting

    def keys(self) -> KeysView[Hashable]:
        """Return all events with a waiting request."""
        return self._by_key.keys()

    def add(self, wait: Wait, waiter: WaiterT) -> None:
        self._waiting[wait] = waiter
        for key in wait.keys:
            self._by_key.setdefault(key, {})[wait] = None

    def remove(self, wait: Wait) -> None:
        """Forget a wait; an unknown wait changes nothing."""
        if self._waiting.pop(wait, None) is None:
            return
        self._ready.pop(wait, None)
        for key in wait.keys:
            waiting = self._by_key[key]
            del waiting[wait]
            if not waiting:
                del self._by_key[key]

    def wake(self, key: Hashable) -> None:
        """Record that an event has happened; waits without further events are ready, in the order of waiting."""
        for wait in self._by_key.pop(key, ()):
            wait.keys.discard(key)
            if not wait.keys:
                self._ready[wait] = None

    def expire(self, now: float) -> None:
        """End the waits whose deadline has passed."""
        self._ready |= dict.fromkeys(wait for wait in self._waiting if wait.until <= now)

    def take_ready(self) -> WaiterT | None:
        """Return and forget the first request whose wait is over; None if there is none."""
        wait = next(iter(self._ready), None)
        if wait is None:
            return None
        waiter = self._waiting[wait]
        self.remove(wait)
        return waiter
