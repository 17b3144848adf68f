"""Lets open requests wait. A request is a verb, a generator: it yields a `Wait` and is resumed when that is over.

    yield Wait({flight, flight}) ──wake of each──┐
                         └──its deadline─────────┴──> ready, in the order of waking ──> the verb is resumed

A wait may be over before its time: a verb that is resumed looks again at what it has waited for. One that is closed
while it waits gives back in its `finally` blocks what it has joined, and nothing else knows of it.

Belongs to the loop's thread. Invariant: a request waits for one thing at a time, so it is resumed once for it.

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
    """What a request waits for.

    Attributes:
        keys: the things that have not happened yet; without any, nothing but `until` wakes it.
        until: when it is over at the latest, seconds on the frontend's clock.
    """

    keys: set[Hashable] = field(default_factory=set)
    until: float = inf


Verb = Generator[Wait, Any, ResultT]
"""What a request does until its end. It is sent what an engine has said, if it has waited for that; else None."""


class Waits(Generic[WaiterT]):
    """All waits of one frontend, and who waits."""

    def __init__(self) -> None:
        self._waiting: dict[Wait, WaiterT] = {}
        self._by_key: dict[Hashable, dict[Wait, None]] = {}
        self._ready: dict[Wait, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, wait: object) -> bool:
        return wait in self._waiting

    def keys(self) -> KeysView[Hashable]:
        """All things that are waited for."""
        return self._by_key.keys()

    def add(self, wait: Wait, waiter: WaiterT) -> None:
        self._waiting[wait] = waiter
        for key in wait.keys:
            self._by_key.setdefault(key, {})[wait] = None

    def remove(self, wait: Wait) -> None:
        """Forget a wait; an unknown one changes nothing."""
        if self._waiting.pop(wait, None) is None:
            return
        self._ready.pop(wait, None)
        for key in wait.keys:
            waiting = self._by_key[key]
            del waiting[wait]
            if not waiting:
                del self._by_key[key]

    def wake(self, key: Hashable) -> None:
        """Note that something has happened; who waits for nothing else is ready, in the order of waiting."""
        for wait in self._by_key.pop(key, ()):
            wait.keys.discard(key)
            if not wait.keys:
                self._ready[wait] = None

    def expire(self, now: float) -> None:
        """End the waits whose time is over."""
        self._ready |= dict.fromkeys(wait for wait in self._waiting if wait.until <= now)

    def take_ready(self) -> WaiterT | None:
        """Return and forget the first who need not wait any more; None: all others wait."""
        wait = next(iter(self._ready), None)
        if wait is None:
            return None
        waiter = self._waiting[wait]
        self.remove(wait)
        return waiter
