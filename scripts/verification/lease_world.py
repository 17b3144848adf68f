"""One P0, one engine, its workers, and everything between them, as a state that can be explored.

    P0: Ring ────── to_engine ──────> Engine ── to_worker ──> Worker of rank 0, 1 …      all may die, and start anew
             <── to_writer[process] ──       <─ from_worker ──
        │  writes memory and books        │ writes its entry's words        │ reads memory
        └──────────────── words, byte locks (die with their holder) ─────┘

What is real in each of them its module says. Budgets bound what comes from outside: work, kills and losses. What
repairs itself needs no budget, so that from every state it can be asked whether all leases come back.

What must hold in every state:

    I1  the bytes under a lease that a living process holds, reads under, or is about to receive, are untouched
    I2  from here on, without another kill or loss, all leases can come back: asked of the whole graph, by the explorer
    I3  a living incarnation has not given back more than it was granted: `check_integrity` of P0's books
    I4  a word of an entry is written by the one engine that has taken it; also checked at each write
    I6  nobody acts on a descriptor of another epoch or incarnation; also checked at each receipt

Of what is under way only the descriptors to the living engine count: any other is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from mmcached.wire.handle import Handle
from scripts.verification.explorer import Event, Violation
from scripts.verification.lease_between import Descriptor, LockTable, Plan, Queues, Said, ToWorker
from scripts.verification.lease_engine import Engine
from scripts.verification.lease_ring import Ring
from scripts.verification.lease_worker import Worker

if TYPE_CHECKING:
    from scripts.verification.lease_scenarios import Setting

Args = ParamSpec("Args")


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


class Nobody:
    """In place of a process that is dead."""

    def key(self) -> object:
        return None


NOBODY = Nobody()


class World:
    """The parts of one state; a part that is changed is copied first, see `own_ring` and the like."""

    def __init__(self, setting: Setting, parts: Sequence[Any]) -> None:
        self.setting = setting
        self.ring: Ring
        self.locks: LockTable
        self._queues: Queues
        self.budget: Budget
        self.census: Census
        self.ring, self.locks, self._queues, self.budget, self.census, self._engine, *self._workers = parts
        self._owned: set[object] = set()

    @classmethod
    def create(cls, setting: Setting, budget: Budget) -> World:
        ring, queues = setting.new_ring(epoch=1), Queues(setting.num_ranks)
        return cls(setting, [ring, LockTable(), queues, budget, Census(), NOBODY, *[NOBODY] * setting.num_ranks])

    @classmethod
    def start(cls, setting: Setting, budget: Budget) -> World:
        """Return where an exploration begins."""
        world = cls.create(setting, Budget())
        while not world._has_started(setting.started):
            next(event for event in world.events() if event.is_healing).run(world)
            world = World(setting, world.parts())
        world.budget = budget
        return world

    def _has_started(self, what: str) -> bool:
        has_reader = bool(self.ring.leases.grantable_readers()) and not self.queues.is_anything_under_way()
        has_workers = self.engine is not None and self.engine.group.are_all_attached
        return what == "nothing" or (has_reader and (what == "engine" or has_workers))

    def parts(self) -> Sequence[Any]:
        return (self.ring, self.locks, self._queues, self.budget, self.census, self._engine, *self._workers)

    def with_parts(self, parts: Sequence[Any]) -> World:
        return World(self.setting, parts)

    # ---- parts to look at, and to change

    @property
    def queues(self) -> Queues:
        return self._queues

    @property
    def engine(self) -> Engine | None:
        return self._engine if isinstance(self._engine, Engine) else None

    def worker(self, rank: int) -> Worker | None:
        worker = self._workers[rank]
        return worker if isinstance(worker, Worker) else None

    def workers(self) -> list[Worker]:
        """Return those that live."""
        return [worker for worker in self._workers if isinstance(worker, Worker)]

    def own_ring(self) -> Ring:
        self.ring = self._owning("ring", self.ring)
        return self.ring

    def own_locks(self) -> LockTable:
        self.locks = self._owning("locks", self.locks)
        return self.locks

    def own_queues(self) -> Queues:
        self._queues = self._owning("queues", self._queues)
        return self._queues

    def own_engine(self) -> Engine:
        self._engine = self._owning("engine", self._engine)
        assert isinstance(self._engine, Engine)
        return self._engine

    def own_worker(self, rank: int) -> Worker:
        worker = self._owning(rank, self._workers[rank])
        assert isinstance(worker, Worker)
        self._workers[rank] = worker
        return worker

    def _owning(self, name: object, part: Any) -> Any:
        if name in self._owned:
            return part
        self._owned.add(name)
        return part.copy()

    def spend(self, what: str) -> None:
        self.budget = replace(self.budget, **{what: getattr(self.budget, what) - 1})

    # ---- what may happen

    def events(self) -> Iterator[Event]:
        """Yield every event; the order decides which of several shortest traces is shown."""
        yield from self.ring.events(self)
        if self.engine is not None:
            yield from self.engine.events(self)
        for worker in self.workers():
            yield from worker.events(self)
        yield from self._supervisor_events()
        yield from self._faults()

    def _supervisor_events(self) -> Iterator[Event]:
        if self.engine is None:
            yield _event(("the supervisor starts engine", self.census.engines + 1), World.start_engine)
            return
        for rank in range(self.setting.num_ranks):
            worker = self.worker(rank)
            if worker is None:
                if self._has_engine_heard_of_ring():
                    number = self.census.workers + 1
                    yield _event((f"the supervisor starts worker {number} of rank {rank}",), World.start_worker, rank)
            elif self.setting.actors.has_overdue_kills and self._is_step_lost(worker):
                yield _event(("a step is overdue: the supervisor kills", worker.name), World.end_worker, rank)

    def _has_engine_heard_of_ring(self) -> bool:
        """Return False while each new worker would be told to attach to a ring that has gone, and exit, without end."""
        entry = None if self.engine is None else self.engine.entry
        return entry is None or entry.announcement.epoch == self.ring.epoch

    def _is_step_lost(self, worker: Worker) -> bool:
        """Return whether the engine waits for a read that this worker will never report."""
        assert self.engine is not None
        if worker.reading is not None or self.queues.to_worker[worker.rank] or self.queues.from_worker[worker.rank]:
            return False
        return any(epoch == worker.epoch for held in self.engine.book._held.values() for epoch, _ in held.reads)

    def _faults(self) -> Iterator[Event]:
        if self.budget.kills:
            if self.engine is not None:
                yield _event(("KILL", self.engine.name), World.kill_engine).not_counted_on()
            for worker in self.workers():
                yield _event(("KILL", worker.name), World.kill_worker, worker.rank).not_counted_on()
        if self.budget.restarts:
            yield _event(("KILL and restart P0",), World.restart_writer).not_counted_on()
        if self.budget.lost_from_writer:
            for index, sent in enumerate(self.queues.to_engine):
                yield _event(("LOSE", Said(sent)), World.lose_from_writer, index).not_counted_on()
        if self.budget.lost_to_writer:
            for engine, index, answer in self.queues.answers():
                yield _event(("LOSE", Said(answer)), World.lose_to_writer, engine, index).not_counted_on()
        if self.budget.lost_plans:
            for rank, queue in enumerate(self.queues.to_worker):
                for index, message in enumerate(queue):
                    if isinstance(message, Plan):
                        yield _event(("LOSE", Said(message)), World.lose_plan, rank, index).not_counted_on()

    def start_engine(self) -> None:
        self.census = replace(self.census, engines=self.census.engines + 1)
        self._engine = self.setting.actors.engine.start(self.census.engines, self.setting.num_ranks)
        self._owned.add("engine")

    def start_worker(self, rank: int) -> None:
        self.census = replace(self.census, workers=self.census.workers + 1)
        self._workers[rank] = self.setting.actors.worker(rank, self.census.workers)

    def kill_engine(self) -> None:
        self.spend("kills")
        assert self.engine is not None
        self.own_locks().release(self.engine.name)
        self._engine = NOBODY

    def kill_worker(self, rank: int) -> None:
        self.spend("kills")
        self.end_worker(rank)

    def end_worker(self, rank: int) -> None:
        worker = self.worker(rank)
        assert worker is not None
        self.own_locks().release(worker.name)
        self.own_queues().drop_inbox(rank)
        self._workers[rank] = NOBODY

    def send_to_worker(self, epoch: int, message: ToWorker) -> None:
        """Queue a message on the connection of one worker process; nothing happens if that is dead."""
        for worker in self.workers():
            if worker.epoch == epoch:
                self.own_queues().send_to_worker(worker.rank, message)

    def restart_writer(self) -> None:
        """P0 dies, and the next one makes a new ring; what the former has sent may still arrive."""
        self.spend("restarts")
        self.ring = self.setting.new_ring(self.ring.epoch + 1)
        self._owned.add("ring")

    def lose_from_writer(self, index: int) -> None:
        self.spend("lost_from_writer")
        self.own_queues().lose_to_engine(index)

    def lose_to_writer(self, engine: int, index: int) -> None:
        self.spend("lost_to_writer")
        self.own_queues().lose_to_writer(engine, index)

    def lose_plan(self, rank: int, index: int) -> None:
        self.spend("lost_plans")
        self.own_queues().lose_plan(rank, index)

    # ---- what must hold

    def settle(self) -> None:
        """Number the barriers anew, if one of them has gone."""
        ids = sorted(self.queues.barrier_ids() | self.ring.barrier_ids())
        if len(ids) != self.ring.num_barriers:
            new_ids = {old: new for new, old in enumerate(ids, start=1)}
            self.own_ring().renumber_barriers(new_ids)
            self.own_queues().renumber_barriers(new_ids)

    def check_part(self, part: Any) -> None:
        if isinstance(part, (Ring, Engine)):
            part.check_integrity()

    def check(self) -> None:
        check_invariants(self)

    def is_at_rest(self) -> bool:
        return self.ring.is_at_rest()


def _event(
    label: tuple[object, ...],
    method: Callable[Concatenate[World, Args], object],
    *args: Args.args,
    **kwargs: Args.kwargs,
) -> Event:
    return Event(label, lambda world: method(world, *args, **kwargs))


def check_invariants(world: World) -> None:
    """Raises Violation."""
    for handle, who in _leases_of_the_living(world):
        if not world.ring.holds(handle):
            raise Violation(f"I1: {who} generation {handle.generation}, and it has been overwritten")
    for worker in world.workers():
        if worker.reading is not None and worker.reading.handle.epoch != worker.ring_epoch:
            raise Violation(f"I6: {worker.name} of epoch {worker.ring_epoch} reads {worker.reading.handle}")
    engine = world.engine
    if engine is not None and engine.entry is not None and engine.entry.announcement.epoch == world.ring.epoch:
        entry = engine.entry
        if world.ring.incarnation_in_entry(entry.reader_id) != entry.incarnation:
            raise Violation(f"I4: entry {entry.reader_id} of {engine.name} has been taken by another engine")


def _leases_of_the_living(world: World) -> Iterator[tuple[Handle, str]]:
    for worker in world.workers():
        if worker.reading is not None:
            yield worker.reading.handle, f"{worker.name} reads"
    engine = world.engine
    if engine is not None and engine.entry is not None:
        for held in engine.book._held.values():
            yield held.handle, f"{engine.name} holds"
        for message in world.queues.to_engine:
            if isinstance(message, Descriptor) and engine.entry.owns(message.handle, message.lease):
                yield message.handle, f"{engine.name} is about to receive"
