"""What survives the processes of a chaos run: a file of counters, mapped by all of them.

    row 0          the phase, written by the parent alone
    row n          the counters of life n: one process, from its fork to its death, and nobody else writes there

Counting in mapped memory, because a process that is killed has no last word.
"""

from __future__ import annotations

import enum
import mmap
from pathlib import Path
from types import TracebackType
from typing import Self

MAX_LIVES = 1 << 16
NUM_COUNTS = 16


class Phase(enum.IntEnum):
    """What the parent asks of all: run; come to rest (nothing is put or granted, all is given back); end."""

    RUN = 0
    REST = 1
    END = 2


class Count(enum.IntEnum):
    """The columns of a row. PUTS to RESTS are a writer's, the others a reader's."""

    PUTS = 0
    GRANTS = 1
    REFUSED = 2
    UNSENT = 3
    DEATHS = 4
    LEASES = 5
    RESTS = 6
    VERIFIED = 7
    COPIED = 8
    CORRUPT = 9
    STALE = 10
    FOREIGN = 11
    ATTACHED = 12


class Board:
    """The file, mapped. Leaving the block unmaps it."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._mapping = mmap.mmap(file.fileno(), 8 * NUM_COUNTS * MAX_LIVES)
        self._words = memoryview(self._mapping).cast("Q")

    @classmethod
    def create(cls, path: Path) -> Board:
        with path.open("xb") as file:
            file.truncate(8 * NUM_COUNTS * MAX_LIVES)
        return cls(path)

    @property
    def phase(self) -> Phase:
        return Phase(self._words[0])

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._words[0] = phase

    def add(self, life: int, count: Count, number: int = 1) -> None:
        self._words[life * NUM_COUNTS + count] += number

    def set(self, life: int, count: Count, number: int) -> None:
        self._words[life * NUM_COUNTS + count] = number

    def get(self, life: int, count: Count) -> int:
        return self._words[life * NUM_COUNTS + count]

    def total(self, count: Count, num_lives: int) -> int:
        """Return the sum over lives 1 … num_lives."""
        return sum(self.get(life, count) for life in range(1, num_lives + 1))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._words.release()
        self._mapping.close()
