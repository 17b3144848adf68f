"""The actor table knows which actors answer, what each has to do, and which of them has the least.

Knows nothing of how an actor is called. Any thread may use it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

import msgspec

from mmcached.wire.messages.parts import EncoderForm
from mmcached.worker.encoders.pieces import Bytes1D


class Lost(Exception):
    """A call has no answer: its actor has died, or is late."""


class Call(Protocol):
    """One call of an actor, under way."""

    def is_over(self) -> bool:
        """Whether nothing more will come of it."""

    def result(self, timeout_s: float) -> Any:
        """Return the answer. Raises `Lost`."""


class Actor(Protocol):
    """An encoder in another process, perhaps on another host. Calls return at once, and raise `Lost`."""

    @property
    def name(self) -> str: ...

    def describe(self) -> Call:
        """Ask for its `Report`, as MessagePack."""

    def encode(self, record: Bytes1D, num_embeds: int, output_bytes: int) -> Call:
        """Ask for an `Answer`.

        Args:
            record: of the item, as `mmcached.shm.store.codec` encodes it.
            output_bytes: about so many are expected.
        """


class Report(msgspec.Struct, frozen=True):
    """What an actor says of itself.

    Attributes:
        embedding_bytes: see `Measured`.
        num_open: calls that it has not answered, of all callers.
    """

    fingerprint: str
    form: EncoderForm
    embedding_bytes: int
    num_open: int


Answer = tuple[str, int, bytes, Bytes1D]
"""The actor's fingerprint; the calls that are still open there; an `ErrorInfo` as MessagePack, or nothing; the outputs
as an encoded record, or nothing."""


@dataclass(slots=True)
class _Known:
    actor: Actor
    report: Report
    others: int = 0  # calls that others have open there
    last_asked: int = 0
    calls: list[Call] = field(default_factory=list)

    def num_calls(self) -> int:
        """Return how many calls of ours are under way, those that nobody waits for any more among them."""
        self.calls = [call for call in self.calls if not call.is_over()]
        return len(self.calls)

    def note(self, num_open: int) -> None:
        self.others = max(0, num_open - self.num_calls())


class ActorTable:
    """The actors that have answered of late, by name."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._known: dict[str, _Known] = {}
        self._turns = count(1)

    def wait_for(self, is_so: Callable[[Mapping[str, Report]], bool], timeout_s: float) -> Mapping[str, Report]:
        """Wait until the reports, by name of their actor, are as wished, or the time is over; return them."""
        with self._changed:
            self._changed.wait_for(lambda: is_so(self._reports()), timeout_s)
            return self._reports()

    def looked(self, heard: Sequence[tuple[Actor, Report]]) -> None:
        """Take note of all that have answered just now; of others nothing is known any more."""
        with self._changed:
            before, self._known = self._known, {}
            for actor, report in heard:
                known = before.get(actor.name) or _Known(actor, report)
                known.actor, known.report = actor, report
                known.note(report.num_open)
                self._known[actor.name] = known
            self._changed.notify_all()

    def ask(self, fingerprint: str, call: Callable[[Actor], Call]) -> tuple[str, Call]:
        """Call the actor that has the least to do, of several the one that was asked longest ago; return its name too.

        Args:
            fingerprint: of those that may be asked.
        Raises:
            Lost: there is none, or it is lost by now.
        """
        with self._changed:
            able = [known for known in self._known.values() if known.report.fingerprint == fingerprint]
            if not able:
                raise Lost(f"no actor that computes alike answers, of {len(self._known)} that do")
            chosen = min(
                able,
                key=lambda known: (known.num_calls() + known.others, known.last_asked),
            )
            chosen.last_asked = next(self._turns)
            made = call(chosen.actor)
            chosen.calls.append(made)
            return chosen.actor.name, made

    def answered(self, name: str, num_open: int) -> None:
        """Take note of what an actor has to do, by its own account."""
        with self._changed:
            if name in self._known:
                self._known[name].note(num_open)

    def lost(self, name: str) -> None:
        """Ask an actor no more until it is heard of again."""
        with self._changed:
            self._known.pop(name, None)

    def _reports(self) -> Mapping[str, Report]:
        return {name: known.report for name, known in self._known.items()}


def most_common(reports: Mapping[str, Report]) -> str:
    """Return the fingerprint that most actors have; of several the first in the alphabet, so that all choose alike."""
    counts = Counter(report.fingerprint for report in reports.values())
    return min(counts, key=lambda fingerprint: (-counts[fingerprint], fingerprint))
