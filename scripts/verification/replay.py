"""Runs plain functions one access to shared memory at a time, by running them again from the start.

    program(machine, carry) ──> carry of its next run, or None: it has ended
              │ every access: machine.load(word), .store(word, value) …
              ▼
    Replay: accesses whose result is recorded get it; the first without one ends the replay. That access is a `Node`;
            its successors are made when it has been given a result, and remembered: one replay per history, not state.

Knows nothing of buffers and of other processes. A program must depend on nothing but its carry and the results of its
accesses, so a run makes all its objects itself. What it stores needs no answer and does not end a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from typing import Any, NamedTuple, Protocol

from scripts.verification.explorer import Violation


class Kind(Enum):
    LOAD, WAIT, FENCE, ACQUIRE, CHOOSE, END, WRONG = range(7)


class Access(NamedTuple):
    """What a program does next.

    Attributes:
        detail: of WAIT the value, of CHOOSE the number of choices, of END the next run's carry, of WRONG the exception.
    """

    kind: Kind
    word: int = -1
    detail: Any = None


class Effect(Enum):
    STORE = "store"
    RELEASE = "release store"
    """Everything that the same thread has done before it, it has done for all others."""
    LATE_READ = "late read"
    """Done at any time before what is released or fenced after it; must find this value."""


class Issued(NamedTuple):
    """What a program has done that needs no answer."""

    effect: Effect
    word: int
    value: int


History = tuple[tuple[Access, Any], ...]
"""Each access that had to be answered, and its result."""


class Machine(Protocol):
    """A memory of 64-bit words, as one thread sees it.

    Attributes:
        reads_late: it does loads after later loads and stores, unless a fence or a release store is between.
    """

    @property
    def reads_late(self) -> bool: ...

    def load(self, word: int) -> int: ...
    def store(self, word: int, value: int) -> None: ...
    def store_release(self, word: int, value: int) -> None: ...
    def fence(self) -> None: ...
    def expect(self, word: int, value: int) -> None:
        """Load a word whose value decides nothing, and must be this one."""

    def wait(self, word: int, value: int) -> None:
        """Go on when a word has this value; that others say so in a message."""

    def locked(self, word: int) -> AbstractContextManager[None]:
        """Return a lock, for `with`: one thread at a time; a release store lets it go, to take it is no fence."""

    def choose(self, num_choices: int) -> int:
        """Return any of 0 … num_choices - 1."""


Program = Callable[[Machine, Any], Hashable]


class _Stop(BaseException):
    """Ends a replay; not an Exception, so that no program handles it."""


class Replay:
    """One run of a program, as far as its results are known."""

    def __init__(self, history: History, *, reads_late: bool) -> None:
        self._history = history
        self.reads_late = reads_late
        self._num_answered = 0
        self.issued: list[Issued] = []  # since the last recorded access
        self.stopped_at: Access | None = None

    def load(self, word: int) -> int:
        return int(self._ask(Access(Kind.LOAD, word)))

    def store(self, word: int, value: int) -> None:
        self._issue(Issued(Effect.STORE, word, int(value)))

    def store_release(self, word: int, value: int) -> None:
        self._issue(Issued(Effect.RELEASE, word, int(value)))

    def expect(self, word: int, value: int) -> None:
        if self.reads_late:
            self._issue(Issued(Effect.LATE_READ, word, value))
        else:
            check_read(value, self.load(word))

    def fence(self) -> None:
        self._ask(Access(Kind.FENCE))

    def wait(self, word: int, value: int) -> None:
        self._ask(Access(Kind.WAIT, word, value))

    @contextmanager
    def locked(self, word: int) -> Iterator[None]:
        self._ask(Access(Kind.ACQUIRE, word))
        try:
            yield
        finally:
            self.store_release(word, 0)

    def choose(self, num_choices: int) -> int:
        return int(self._ask(Access(Kind.CHOOSE, detail=num_choices)))

    def _ask(self, access: Access) -> Any:
        if self.stopped_at is None and self._num_answered < len(self._history):
            expected, result = self._history[self._num_answered]
            if expected != access:
                raise RuntimeError(f"the program is not a function of its results: {expected}, then {access}")
            self._num_answered += 1
            self.issued.clear()
            return result
        self.stopped_at = self.stopped_at or access
        raise _Stop

    def _issue(self, issued: Issued) -> None:
        if self.stopped_at is not None:  # a `finally` on the way out
            raise _Stop
        self.issued.append(issued)


class Node:
    """Where a program stands: its next access, and what it has issued on the way from the last one.

    Equal programs with equal carries and histories share it, so identity is equality.
    """

    __slots__ = ("_children", "_history", "_run", "access", "issued")

    def __init__(self, run: Run, history: History) -> None:
        self._run = run
        self._history = history
        self._children: dict[Hashable, Node] = {}
        replay = Replay(history, reads_late=run.runs.reads_late)
        self.access = _play(run, replay)
        self.issued = tuple(replay.issued)

    def after(self, result: Hashable = None) -> Node:
        """Return where its next access is, once this one has had a result."""
        child = self._children.get(result)
        if child is None:
            child = self._children[result] = Node(self._run, (*self._history, (self.access, result)))
        return child

    def next_run(self) -> Node:
        return self._run.runs.start(self._run.program, self.access.detail)


class Run(NamedTuple):
    runs: Runs
    program: Program
    carry: Hashable


class Runs:
    """The first node of each run.

    Args:
        reads_late: of a machine that does loads after later stores, unless those are release stores.
    """

    def __init__(self, *, reads_late: bool) -> None:
        self.reads_late = reads_late
        self._nodes: dict[tuple[Program, Hashable], Node] = {}

    def start(self, program: Program, carry: Hashable) -> Node:
        found = self._nodes.get((program, carry))
        if found is None:
            found = self._nodes[program, carry] = Node(Run(self, program, carry), ())
        return found


def _play(run: Run, replay: Replay) -> Access:
    try:
        return Access(Kind.END, detail=run.program(replay, run.carry))
    except _Stop:
        assert replay.stopped_at is not None
        return replay.stopped_at
    except Exception as error:  # whatever the product raises here is a finding
        return Access(Kind.WRONG, detail=error)


def check_read(expected: int, found: int) -> None:
    """Raise Violation if a read has not found what it must."""
    if found != expected:
        raise Violation(f"I1: {expected} should be read, and {found} is")
