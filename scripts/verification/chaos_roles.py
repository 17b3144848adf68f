"""Defines what the processes of a chaos run share: who they are, what they say, and what survives them.

    reader ── Who ──> writer        reader ── Hello(ring, reader, incarnation) ──> writer
    reader <── Ring(announcement) ──              <── Attached(incarnation)
    layer  ── Open(bytes) ──> writer              layer ── Lay(number, place) ──> writer
    layer  <── Opened(grants) ──                        <── Laid(number, grants)

A writer that is killed takes its socket along; its successor binds the same path, and readers that hear nothing for a
while ask who is there. What survives is a board, a file of words that is mapped by all, because a process that is
killed has no last word:

    row 0          the phase, written by the parent alone; the last stamp that was flushed, by the writer
    row n          the counters of life n: one process, from its fork to its death, and nobody else writes there
    ledger         by slot, the stamp of what the writer has committed there and not evicted; 0 for nothing
"""

from __future__ import annotations

import enum
import mmap
import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import zmq

from mmcached.wire.handle import RingAnnouncement
from mmcached.wire.messages.parts import Grants, NurseryPlace

MAX_LIVES = 1 << 16
NUM_COUNTS = 32
STAMP_BITS = 16
LEDGER_WORDS = 320
NUM_KEYS = 256
"""Of records that the writer puts; then come those of records in nurseries."""
NUM_LAID = 48
TENANT = "chaos"
KEYS = [f"key {number}" for number in range(NUM_KEYS + NUM_LAID)]
SILENCE_S = 0.1
_BYTES = 8 * (NUM_COUNTS * MAX_LIVES + LEDGER_WORDS)


class Phase(enum.IntEnum):
    """What the parent asks of all: run; come to rest (nothing is put, all is given back); end."""

    RUN = 0
    REST = 1
    END = 2


class Count(enum.IntEnum):
    """The columns of a row. PUTS to RESTS, DROPS to FOUND and LAID to DRAINED are a writer's, STALE_PLACES are a
    layer's, the others a reader's.
    """

    PUTS = 0
    REFUSED = 1
    DEATHS = 2
    LEASES = 3
    RESTS = 4
    VERIFIED = 5
    COPIED = 6
    CORRUPT = 7
    STALE = 8
    FOREIGN = 9
    ATTACHED = 10
    MISSES = 11
    DROPS = 12
    FLUSHES = 13
    PINNED_BYTES = 14
    KEPT = 15
    FOUND = 16
    LAID = 17
    PROMOTED = 18
    DRAINED = 19
    STALE_PLACES = 20


class Board:
    """The file, mapped. Leaving the block unmaps it."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._mapping = mmap.mmap(file.fileno(), _BYTES)
        self._words = memoryview(self._mapping).cast("Q")
        self.ledger = self._words[NUM_COUNTS * MAX_LIVES :]

    @classmethod
    def create(cls, path: Path) -> Board:
        with path.open("xb") as file:
            file.truncate(_BYTES)
        return cls(path)

    @property
    def phase(self) -> Phase:
        return Phase(self._words[0])

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._words[0] = phase

    @property
    def flushed(self) -> int:
        return self._words[1]

    @flushed.setter
    def flushed(self, stamp: int) -> None:
        self._words[1] = stamp

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
        self.ledger.release()
        self._words.release()
        self._mapping.close()


class Who(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A reader wants to know which ring there is."""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A reader has taken an entry."""

    ring_id: str
    reader_id: int
    incarnation: int


class Ring(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The writer's ring."""

    announcement: RingAnnouncement


class Attached(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A reader may take leases by itself."""

    incarnation: int


class Open(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A layer wants a nursery, or room in the one that it has."""

    nbytes: int
    nursery: int = 0


class Opened(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """A layer's nursery; None: it has none."""

    epoch: int
    grants: Grants | None


class Lay(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """A layer has laid a record of key number `key`."""

    number: int
    key: int
    epoch: int
    stamp: int
    place: NurseryPlace


class Laid(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """What has become of it; stale: its place was not the layer's."""

    number: int
    epoch: int
    grants: Grants | None
    is_stale: bool = False


@dataclass(frozen=True, slots=True)
class Role:
    """What a role is told when it is forked."""

    run_dir: Path
    board: Board
    life: int
    seed: int

    def count(self, count: Count, number: int = 1) -> None:
        self.board.add(self.life, count, number)

    def log_ring(self, announcement: RingAnnouncement) -> None:
        """Tell the parent of a ring; it looks for what is left of it."""
        with (self.run_dir / "rings").open("a") as log:
            log.write(announcement.ring_id + "\n")

    @property
    def identity(self) -> bytes:
        """By which the writer knows this process, and finds out whether it lives."""
        return b"%d %d" % (self.life, os.getpid())

    @property
    def address(self) -> str:
        return f"ipc://{self.run_dir}/ring"


def new_stamp(number: int) -> int:
    """Return a number that no payload of a run has had, larger than all before; its lower bits are the key's."""
    return time.monotonic_ns() << STAMP_BITS | number


def open_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    for option in (zmq.SNDHWM, zmq.RCVHWM):
        socket.setsockopt(option, 16)
    socket.setsockopt(zmq.LINGER, 0)
    return socket
