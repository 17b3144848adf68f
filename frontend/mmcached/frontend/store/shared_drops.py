"""Records that a client drops on all hosts: each drop is ordered until the second level has confirmed it.

    begin ──> due ──ordered──> awaited ──confirmed──────────────────> over: its clients are answered
               ^                  └──reported as failed, or its process is another one──> due a second later, or at once
               └──────────────────────┘

A client waits for `WAIT_S` at most, and is told the error then; the drop stays open. While it is, the record is not
fetched. Sans I/O; does not know messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from mmcached.wire.messages.second_level import Drop

MAX_DROPS = 1024
"""Maximum number of open drops."""
WAIT_S = 1.0
"""The longest wait of a client."""
AGAIN_S = 1.0
"""Seconds after a failed drop until the next attempt."""
_NOT_CONFIRMED = "its process has not answered"

Answer = Callable[[str], object]
"""Called once: with why a drop is not confirmed, or "" if it is."""


@dataclass(slots=True, eq=False)
class _Drop:
    number: int
    name: str
    next_order: float = -inf
    error: str = ""
    waiting: list[tuple[float, Answer]] = field(default_factory=list)


class SharedDrops:
    """The open drops of one store, by name of the record.

    Args:
        clock: Monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._number = 0
        self._name_to_drop: dict[str, _Drop] = {}

    def __len__(self) -> int:
        return len(self._name_to_drop)

    @property
    def is_full(self) -> bool:
        return len(self) >= MAX_DROPS

    def has(self, name: str) -> bool:
        """Return whether other hosts may still have a record that was dropped here."""
        return name in self._name_to_drop

    def begin(self, name: str, answer: Answer) -> None:
        """Begin a drop, in place of an open one of the name."""
        self._number += 1
        former = self._name_to_drop.pop(name, None)
        made = self._name_to_drop[name] = _Drop(self._number, name)
        made.waiting = [*(former.waiting if former else ()), (self._clock() + WAIT_S, answer)]

    @property
    def next_order(self) -> float:
        return min((each.next_order for each in self._name_to_drop.values()), default=inf)

    @property
    def next_deadline(self) -> float:
        """When a client has waited for long enough."""
        return min((until for each in self._name_to_drop.values() for until, _ in each.waiting), default=inf)

    def take_orders(self, now: float) -> list[Drop]:
        due = [each for each in self._name_to_drop.values() if each.next_order <= now]
        for each in due:
            each.next_order = inf  # until its result has been reported
        return [Drop(each.number, each.name) for each in due]

    def ended(self, number: int, error: str) -> None:
        """Apply a result; that of a drop which a later one has replaced changes nothing."""
        found = next((each for each in self._name_to_drop.values() if each.number == number), None)
        if found is None:
            return
        if error:
            found.error, found.next_order = error, self._clock() + AGAIN_S
        else:
            del self._name_to_drop[found.name]
        waiting, found.waiting = found.waiting, []
        for _, answer in waiting:
            answer(error)

    def expire(self, now: float) -> None:
        """Tell the clients that have waited for long enough."""
        for each in list(self._name_to_drop.values()):
            late = [answer for until, answer in each.waiting if until <= now]
            each.waiting = [(until, answer) for until, answer in each.waiting if until > now]
            for answer in late:
                answer(each.error or _NOT_CONFIRMED)

    def process_is_lost(self) -> None:
        """Order all again, of the next process."""
        for each in self._name_to_drop.values():
            each.next_order = -inf
