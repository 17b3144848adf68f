"""Table of the actors that answer, with their load. Thread-safe."""

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
    def is_over(self) -> bool:
        """Return whether the call has ended, with or without an answer."""

    def result(self, timeout_s: float) -> Any:
        """Return the answer. Raises `Lost`."""


class Actor(Protocol):
    """Encoder in another process, perhaps on another host. Calls return at once, and raise `Lost`."""

    @property
    def name(self) -> str: ...

    def describe(self) -> Call:
        """Request its `Report`, as MessagePack."""

    def encode(self, record: Bytes1D, num_embeds: int, output_bytes: int) -> Call:
        """Request an `Answer` of about `output_bytes`; `record` is encoded as by `mmcached.shm.store.codec`."""


class Report(msgspec.Struct, frozen=True):
    """Self-description of an actor; `num_open` counts unanswered calls of all callers; `rows`: see `Encoder.rows`."""

    fingerprint: str
    form: EncoderForm
    embedding_bytes: int
    num_open: int
    rows: dict[str, Any] | None = None


Answer = tuple[str, int, bytes, Bytes1D]
"""The actor's fingerprint; its number of open calls; an `ErrorInfo` as MessagePack, or empty; the outputs as an encoded
record, or empty."""


@dataclass(slots=True)
class _Known:
    actor: Actor
    report: Report
    others: int = 0  # open calls of other processes
    last_asked: int = 0
    calls: list[Call] = field(default_factory=list)

    def num_calls(self) -> int:
        """Return the number of this process's pending calls, abandoned calls included."""
        self.calls = [call for call in self.calls if not call.is_over()]
        return len(self.calls)

    def note(self, num_open: int) -> None:
        self.others = max(0, num_open - self.num_calls())


class ActorTable:
    """Actors that have answered recently, by name."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._known: dict[str, _Known] = {}
        self._turns = count(1)

    def wait_for(self, is_so: Callable[[Mapping[str, Report]], bool], timeout_s: float) -> Mapping[str, Report]:
        """Wait until `is_so(reports by actor name)` or the timeout; return the reports."""
        with self._changed:
            self._changed.wait_for(lambda: is_so(self._reports()), timeout_s)
            return self._reports()

    def looked(self, heard: Sequence[tuple[Actor, Report]]) -> None:
        """Replace the table by the actors that have answered just now."""
        with self._changed:
            before, self._known = self._known, {}
            for actor, report in heard:
                known = before.get(actor.name) or _Known(actor, report)
                known.actor, known.report = actor, report
                known.note(report.num_open)
                self._known[actor.name] = known
            self._changed.notify_all()

    def ask(self, fingerprint: str, call: Callable[[Actor], Call]) -> tuple[str, Call]:
        """Call the actor with the least load, of several the least recently used; return its name and the call.

        Only actors with `fingerprint` are called. Raises `Lost` if there is none, or if it is lost.
        """
        with self._changed:
            able = [known for known in self._known.values() if known.report.fingerprint == fingerprint]
            if not able:
                raise Lost(f"none of {len(self._known)} answering actors has fingerprint {fingerprint}")
            chosen = min(
                able,
                key=lambda known: (known.num_calls() + known.others, known.last_asked),
            )
            chosen.last_asked = next(self._turns)
            made = call(chosen.actor)
            chosen.calls.append(made)
            return chosen.actor.name, made

    def answered(self, name: str, num_open: int) -> None:
        with self._changed:
            if name in self._known:
                self._known[name].note(num_open)

    def lost(self, name: str) -> None:
        """Remove an actor until it answers again."""
        with self._changed:
            self._known.pop(name, None)

    def _reports(self) -> Mapping[str, Report]:
        return {name: known.report for name, known in self._known.items()}


def most_common(reports: Mapping[str, Report]) -> str:
    """Return the most frequent fingerprint, ties to the first in the alphabet, so that all processes choose alike."""
    counts = Counter(report.fingerprint for report in reports.values())
    return min(counts, key=lambda fingerprint: (-counts[fingerprint], fingerprint))
