"""The search itself, over a world of one number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from scripts.verification.explorer import Event, Explorer, Violation


@dataclass(frozen=True)
class Number:
    value: int

    def key(self) -> object:
        return self.value


class Counter:
    """Counts up to `top` by one or two; `forbidden` may not be reached, `resting` is where it wants to be."""

    def __init__(self, number: Number, *, forbidden: int = -1, resting: int = 0, top: int = 9) -> None:
        self.number = number
        self.rules = {"forbidden": forbidden, "resting": resting, "top": top}

    def parts(self) -> Sequence[Number]:
        return [self.number]

    def with_parts(self, parts: Sequence[Any]) -> Counter:
        return Counter(parts[0], **self.rules)

    def events(self) -> Iterator[Event]:
        for step in (1, 2):
            if self.number.value + step <= self.rules["top"]:
                yield Event(("up", step), partial(_add, step), is_healing=step == 2)

    def add(self, step: int) -> None:
        self.number = Number(self.number.value + step)

    def settle(self) -> None:
        pass

    def check_part(self, part: Number) -> None:
        if part.value == 100:
            raise Violation("a part is wrong")

    def check(self) -> None:
        if self.number.value == self.rules["forbidden"]:
            raise Violation("forbidden")

    def is_at_rest(self) -> bool:
        return self.number.value == self.rules["resting"]


def _add(step: int, world: Counter) -> None:
    world.add(step)


def test_it_sees_every_state_once() -> None:
    finding = Explorer(Counter(Number(0), resting=9)).run()
    assert finding.num_states == 10
    assert finding.num_events == 9 + 8


def test_a_violation_comes_with_the_shortest_trace() -> None:
    finding = Explorer(Counter(Number(0), forbidden=5)).run()
    assert finding.violation == "forbidden"
    assert len(finding.trace) == 3
    assert not finding.is_exhausted


def test_what_an_event_raises_is_a_violation_too() -> None:
    class Fragile(Counter):
        def with_parts(self, parts: Sequence[Any]) -> Fragile:
            return Fragile(parts[0], **self.rules)

        def add(self, step: int) -> None:
            raise KeyError("broken")

    finding = Explorer(Fragile(Number(0))).run()
    assert finding.violation == "KeyError: 'broken'"
    assert finding.trace == ("up 1",)


def test_a_part_is_checked() -> None:
    assert Explorer(Counter(Number(98), top=100)).run().violation == "a part is wrong"


def test_the_start_is_checked_too() -> None:
    finding = Explorer(Counter(Number(5), forbidden=5)).run()
    assert finding.violation == "forbidden"
    assert finding.trace == ()


def test_a_state_without_events_that_is_not_at_rest_is_stuck() -> None:
    finding = Explorer(Counter(Number(9))).run()
    assert finding.violation is not None
    assert finding.violation.startswith("I2")


def test_only_healing_events_lead_back_to_rest() -> None:
    finding = Explorer(Counter(Number(0), resting=8, top=8)).run()
    assert finding.violation is not None
    assert finding.violation.startswith("I2")
    assert finding.trace == ("up 1",)  # from an odd number, steps of two do not lead to 8


def test_a_limit_cuts_off_and_says_so() -> None:
    finding = Explorer(Counter(Number(0)), limit=4).run()
    assert finding.violation is None
    assert not finding.is_exhausted
