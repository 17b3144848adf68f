"""What is under way, in order. What a process has sent may arrive after its death. What was sent to a worker ends with
it, for its connection does; what was sent to an engine or P0 does not, here: whoever comes next must know what to drop.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TypeVar

import msgspec

from tests.models.messages import (
    BarrierAnswer,
    BarrierQuestion,
    FromEngine,
    FromWorker,
    FromWriter,
    Plan,
    RowHello,
    ToWorker,
)


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
                if not isinstance(message, RowHello):
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
