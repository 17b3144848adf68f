"""What a world is made of, and how much may happen in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tests.models.control import UNIT, SmallLayout
from tests.models.engine_side import Engine
from tests.models.ring_side import Ring
from tests.models.worker_side import Worker


@dataclass(frozen=True, slots=True)
class Actors:
    """The classes that play; a mutant brings another one."""

    ring: type[Ring] = Ring
    engine: type[Engine] = Engine
    worker: type[Worker] = Worker
    has_overdue_kills: bool = True


@dataclass(frozen=True, slots=True)
class Setting:
    """What does not change in a world.

    Attributes:
        units: size of the ring; at the start of an epoch a chunk of one unit lies in each slot that there is room for.
        put_units: sizes that are put.
        max_barriers: questions and answers that may be under way at a time; P0 asks at any time, but not without end.
        started: what has attached before the exploration begins.
    """

    actors: Actors = field(default_factory=Actors)
    num_rows: int = 2
    num_slots: int = 1
    units: int = 1
    put_units: tuple[int, ...] = (1,)
    num_ranks: int = 1
    max_barriers: int = 0
    quota_bytes: int | None = None
    started: Literal["nothing", "engine", "all"] = "nothing"

    def new_ring(self, epoch: int) -> Ring:
        layout = SmallLayout(self.units * UNIT, self.num_slots, self.num_rows)
        ring = self.actors.ring.create(layout, epoch=epoch, quota_bytes=self.quota_bytes)
        for _ in range(min(self.num_slots, self.units)):
            ring.put(1)
        return ring


@dataclass(frozen=True, slots=True)
class Budget:
    """How often each of these may still happen."""

    puts: int = 0
    grants: int = 0
    plans: int = 0
    kills: int = 0
    restarts: int = 0  # of P0
    lost_from_writer: int = 0  # descriptors and barriers
    lost_to_writer: int = 0  # answers and reports of gaps
    lost_plans: int = 0
    hellos: int = 0  # repeated ones
    discards: int = 0

    def key(self) -> object:
        return self


@dataclass(frozen=True, slots=True)
class Census:
    """How many processes of each kind there were; the next one's number is one more."""

    engines: int = 0
    workers: int = 0

    def key(self) -> object:
        return self
