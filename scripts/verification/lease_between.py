"""Models what lies between the processes: messages, their queues, byte locks, the words of a control object.

Messages are values; where the product's own will do, it is used: `WorkerHello`, `WorkerAttached` and `Attach` travel as
they are. Byte locks have no kernel: who holds which byte of which control object, and what `shm.files.locks` says of
it. `ByteLocks` answers like that module, with a `Description` where the product has a file descriptor; `modelled_locks`
puts it in its place in those modules of the product that the model runs. A process that dies loses all of its locks in
one instant, and its memory map with them. `ModelControl` is the product's `Control` over an array, its layout without
page padding.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar, cast
from unittest import mock

import msgspec
import numpy as np
import numpy.typing as npt

from mmcached.shm.files import locks
from mmcached.shm.ring import reader, reader_watch
from mmcached.shm.segment.layout import ALIGNMENT, FIRST_COUNT_WORD, Layout
from mmcached.shm.segment.mapped import Control
from mmcached.wire.handle import Handle, LeaseId
from mmcached.wire.messages.engine import WorkerAttached, WorkerHello
from mmcached.wire.messages.worker import Attach


class Descriptor(msgspec.Struct, frozen=True):
    """A lease, sent. `meant_for` is what no process can see: the engine's number that P0 had in mind."""

    handle: Handle
    lease: LeaseId
    meant_for: int


class BarrierQuestion(msgspec.Struct, frozen=True):
    epoch: int
    incarnation: int
    barrier_id: int
    last_seq: int
    slots: tuple[int, ...]


class ReaderHello(msgspec.Struct, frozen=True):
    """`sender` is what P0 cannot see: the number of the engine process."""

    epoch: int
    reader_id: int
    incarnation: int
    sender: int


class GapReport(msgspec.Struct, frozen=True):
    epoch: int
    incarnation: int


class BarrierAnswer(msgspec.Struct, frozen=True):
    epoch: int
    incarnation: int
    barrier_id: int
    received: tuple[tuple[int, int], ...]


class Plan(msgspec.Struct, frozen=True):
    engine_incarnation: int
    worker_epoch: int
    step: int
    seq: int
    handle: Handle


class ReadDone(msgspec.Struct, frozen=True):
    engine_incarnation: int
    worker_epoch: int
    step: int
    seq: int


FromWriter = Descriptor | BarrierQuestion
FromEngine = ReaderHello | GapReport | BarrierAnswer
ToWorker = Attach | Plan
FromWorker = WorkerHello | WorkerAttached | ReadDone


class Said:
    """A message as a trace tells it; put into words only when somebody reads it."""

    def __init__(self, message: FromWriter | FromEngine | ToWorker | FromWorker) -> None:
        self._message = message

    def __str__(self) -> str:
        match self._message:
            case Descriptor(handle, lease):
                return f"lease {lease.seq} of generation {handle.generation} for incarnation {lease.incarnation}"
            case BarrierQuestion(_, incarnation, barrier_id, last_seq):
                return f"barrier {barrier_id} for incarnation {incarnation} after lease {last_seq}"
            case ReaderHello(_, reader_id, incarnation, sender):
                return f"ReaderHello of engine {sender}: entry {reader_id}, incarnation {incarnation}"
            case GapReport(_, incarnation):
                return f"the report of a gap, incarnation {incarnation}"
            case BarrierAnswer(_, incarnation, barrier_id, received):
                return (
                    f"the answer to barrier {barrier_id}, incarnation {incarnation}: received by slot {dict(received)}"
                )
            case Attach(engine_incarnation, _, reader_id, incarnation):
                return f"Attach of engine {engine_incarnation}: entry {reader_id}, incarnation {incarnation}"
            case Plan(engine_incarnation, epoch, step, seq):
                return f"plan {step} of engine {engine_incarnation} for worker {epoch}: read under lease {seq}"
            case WorkerHello(rank, epoch):
                return f"WorkerHello of worker {epoch}, rank {rank}"
            case WorkerAttached(epoch, engine_incarnation):
                return f"Attached of worker {epoch} to engine {engine_incarnation}"
            case ReadDone(engine_incarnation, epoch, step, seq):
                return f"read_done of worker {epoch} to engine {engine_incarnation}: plan {step}, lease {seq}"


class Queues:
    """Attributes:
    to_engine: from P0, whichever engine process it is that takes.
    to_writer: from each engine process that ever was.
    to_worker, from_worker: by rank.
    """

    def __init__(self, num_ranks: int) -> None:
        self.to_engine: tuple[FromWriter, ...] = ()
        self.to_writer: tuple[tuple[FromEngine, ...], ...] = ()
        self.to_worker: tuple[tuple[ToWorker, ...], ...] = ((),) * num_ranks
        self.from_worker: tuple[tuple[FromWorker, ...], ...] = ((),) * num_ranks

    def copy(self) -> Queues:
        made = Queues(0)
        made.to_engine, made.to_writer = self.to_engine, self.to_writer
        made.to_worker, made.from_worker = self.to_worker, self.from_worker
        return made

    def key(self) -> object:
        return (self.to_engine, self.to_writer, self.to_worker, self.from_worker)

    def is_anything_under_way(self) -> bool:
        return any((self.to_engine, *self.to_writer, *self.to_worker, *self.from_worker))

    def barrier_ids(self) -> set[int]:
        messages = chain(self.to_engine, *self.to_writer)
        return {each.barrier_id for each in messages if isinstance(each, (BarrierQuestion, BarrierAnswer))}

    def answers(self) -> Iterator[tuple[int, int, FromEngine]]:
        """Yield what P0 can do without, as engine process, place in its queue, message."""
        for engine, queue in enumerate(self.to_writer, start=1):
            for index, message in enumerate(queue):
                if not isinstance(message, ReaderHello):
                    yield engine, index, message

    def renumber_barriers(self, new_ids: dict[int, int]) -> None:
        self.to_engine = tuple(_renumbered(each, new_ids) for each in self.to_engine)
        self.to_writer = tuple(tuple(_renumbered(each, new_ids) for each in queue) for queue in self.to_writer)

    # ---- sending

    def send_to_engine(self, message: FromWriter) -> None:
        self.to_engine += (message,)

    def send_to_writer(self, engine: int, message: FromEngine) -> None:
        self.to_writer += ((),) * (engine - len(self.to_writer))
        self.to_writer = _replaced(self.to_writer, engine - 1, (*self.to_writer[engine - 1], message))

    def send_to_worker(self, rank: int, message: ToWorker) -> None:
        self.to_worker = _replaced(self.to_worker, rank, (*self.to_worker[rank], message))

    def send_from_worker(self, rank: int, message: FromWorker) -> None:
        self.from_worker = _replaced(self.from_worker, rank, (*self.from_worker[rank], message))

    # ---- taking, and losing

    def take_for_engine(self) -> FromWriter:
        first, *rest = self.to_engine
        self.to_engine = tuple(rest)
        return first

    def take_for_writer(self, engine: int) -> FromEngine:
        first, *rest = self.to_writer[engine - 1]
        self.to_writer = _replaced(self.to_writer, engine - 1, tuple(rest))
        return first

    def take_for_worker(self, rank: int) -> ToWorker:
        first, *rest = self.to_worker[rank]
        self.to_worker = _replaced(self.to_worker, rank, tuple(rest))
        return first

    def take_from_worker(self, rank: int) -> FromWorker:
        first, *rest = self.from_worker[rank]
        self.from_worker = _replaced(self.from_worker, rank, tuple(rest))
        return first

    def drop_inbox(self, rank: int) -> None:
        self.to_worker = _replaced(self.to_worker, rank, ())

    def lose_to_engine(self, index: int) -> None:
        self.to_engine = (*self.to_engine[:index], *self.to_engine[index + 1 :])

    def lose_to_writer(self, engine: int, index: int) -> None:
        queue = self.to_writer[engine - 1]
        self.to_writer = _replaced(self.to_writer, engine - 1, (*queue[:index], *queue[index + 1 :]))

    def lose_plan(self, rank: int, index: int) -> None:
        queue = self.to_worker[rank]
        assert isinstance(queue[index], Plan)
        self.to_worker = _replaced(self.to_worker, rank, (*queue[:index], *queue[index + 1 :]))


Queue = TypeVar("Queue")
Message = TypeVar("Message", FromWriter, FromEngine)


def _replaced(queues: tuple[Queue, ...], index: int, queue: Queue) -> tuple[Queue, ...]:
    return (*queues[:index], queue, *queues[index + 1 :])


def _renumbered(message: Message, new_ids: dict[int, int]) -> Message:
    if not isinstance(message, (BarrierQuestion, BarrierAnswer)):
        return message
    return msgspec.structs.replace(message, barrier_id=new_ids[message.barrier_id])


Byte = tuple[int, int]
"""Epoch of the control object, byte in it."""


class LockTable:
    """All locks of the host: byte -> holder -> whether it holds it exclusively."""

    def __init__(self, held: dict[Byte, dict[str, bool]] | None = None) -> None:
        self._held = held or {}

    def copy(self) -> LockTable:
        return LockTable({byte: dict(holders) for byte, holders in self._held.items()})

    def key(self) -> object:
        return tuple(sorted((byte, *sorted(holders.items())) for byte, holders in self._held.items()))

    def try_lock(self, byte: Byte, holder: str, *, is_exclusive: bool) -> bool:
        others = {other: kind for other, kind in self._held.get(byte, {}).items() if other != holder}
        if others and (is_exclusive or any(others.values())):
            return False
        self._held[byte] = others | {holder: is_exclusive}
        return True

    def is_free(self, byte: Byte, holder: str) -> bool:
        return not self._held.get(byte, {}).keys() - {holder}

    def release(self, holder: str, epoch: int | None = None) -> None:
        """Drop what a process holds, of one control object or of all."""
        for byte in [byte for byte, holders in self._held.items() if holder in holders and epoch in (None, byte[0])]:
            del self._held[byte][holder]
            if not self._held[byte]:
                del self._held[byte]


@dataclass(frozen=True, slots=True)
class Description:
    """One process's open control object."""

    table: LockTable
    epoch: int
    holder: str

    def as_fd(self) -> int:
        """Return this, as the product's classes carry it about: they never look at it."""
        return cast(int, self)


class ByteLocks:
    """In place of the module `mmcached.shm.files.locks`."""

    MAX_RANKS = locks.MAX_RANKS
    reader_byte = staticmethod(locks.reader_byte)
    engine_byte = staticmethod(locks.engine_byte)
    worker_byte = staticmethod(locks.worker_byte)

    @staticmethod
    def try_exclusive(fd: int, byte: int) -> bool:
        of = cast(Description, fd)
        return of.table.try_lock((of.epoch, byte), of.holder, is_exclusive=True)

    @staticmethod
    def try_shared(fd: int, byte: int) -> bool:
        of = cast(Description, fd)
        return of.table.try_lock((of.epoch, byte), of.holder, is_exclusive=False)

    @staticmethod
    def downgrade(fd: int, byte: int) -> None:
        ByteLocks.try_shared(fd, byte)

    @staticmethod
    def is_free(fd: int, byte: int) -> bool:
        of = cast(Description, fd)
        return of.table.is_free((of.epoch, byte), of.holder)


@contextlib.contextmanager
def modelled_locks() -> Iterator[None]:
    """Let the product's modules that the model runs ask `ByteLocks`."""
    with mock.patch.object(reader_watch, "locks", ByteLocks), mock.patch.object(reader, "locks", ByteLocks):
        yield


Words = npt.NDArray[np.uint64]

UNIT = ALIGNMENT
"""Bytes of the smallest chunk; the model's ring is a few of them."""


@dataclass(frozen=True, slots=True)
class SmallLayout(Layout):
    """Entries of a few words instead of pages, as the explorer copies and compares them; all else is the product's."""

    @property
    def entry_bytes(self) -> int:
        return 8 * (FIRST_COUNT_WORD + 2 * self.num_slots)

    def entry_offset(self, reader_id: int) -> int:
        return reader_id * self.entry_bytes


class ModelControl(Control):
    """One process's view of the words."""

    def __init__(self, words: Words, layout: Layout, description: Description) -> None:
        self.fd = description.as_fd()
        self.layout = layout
        self._mapping = cast(mmap.mmap, words)
        self.words = words.data.cast("B").cast("Q")

    def map_entry(self, reader_id: int) -> None:
        first = self.layout.incarnation_word(reader_id)
        self.words = self.words[first : first + self.layout.entry_bytes // 8]

    def incarnation(self, reader_id: int) -> int:
        incarnation: int = self.words[self.layout.incarnation_word(reader_id)]
        return incarnation
