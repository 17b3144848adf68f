"""The protocol with one rule removed, for each rule: the explorer must find what then goes wrong.

Each mutant is a subclass of one of the product's classes, or of the actor that keeps the rule, and comes with the
setting and the budgets in which it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from mmcached.engine.server.leases import HeldLeases
from mmcached.shm.ring.leases import LeaseTable
from mmcached.shm.ring.reader_watch import ReaderWatch
from mmcached.shm.ring.received import ReceivedLeases
from scripts.verification.explorer import Event
from scripts.verification.lease_between import ByteLocks, ReaderHello
from scripts.verification.lease_engine import Engine, Taking
from scripts.verification.lease_ring import Ring
from scripts.verification.lease_scenarios import Actors, Scenario, Setting
from scripts.verification.lease_worker import Worker
from scripts.verification.lease_world import Budget
from scripts.verification.mutants import Mutant

if TYPE_CHECKING:
    from scripts.verification.lease_world import World

# ---- P0


class RingThatRevokes(Ring):
    """Takes leases back after a silence, which may be of any length."""

    def events(self, world: World) -> Iterator[Event]:
        yield from super().events(world)
        for reader_id in self.leases.incarnations():
            label = ("P0 revokes the leases of entry", reader_id)
            yield Event(label, partial(_revoke, reader_id), is_healing=False)


def _revoke(reader_id: int, world: World) -> None:
    world.own_ring().leases.void(reader_id)


class WatchThatAttachesAgain(ReaderWatch):
    """Take a repeated Hello for a new life."""

    def attach(self, reader_id: int, incarnation: int) -> bool:
        if self._leases.incarnations().get(reader_id) == incarnation:
            self._leases.void(reader_id)
        return super().attach(reader_id, incarnation)


class RingWithRepeatedHello(Ring):
    reader_watch = WatchThatAttachesAgain


class RingThatTrustsHello(Ring):
    """Takes a Hello as it comes, whoever has the entry by now."""

    def accept(self, world: World, hello: ReaderHello) -> None:
        self.leases.attach(hello.reader_id, hello.incarnation)
        self.meant_for[hello.reader_id] = hello.sender


class TableThatTakesLateAnswers(LeaseTable):
    def reconcile(self, reader_id: int, incarnation: int, barrier_id: int, received: Mapping[int, int]) -> int | None:
        barrier = self._readers[reader_id].barrier if reader_id in self._readers else None
        if barrier is not None and set(barrier.slots) == received.keys():
            barrier_id = barrier.barrier_id
        return super().reconcile(reader_id, incarnation, barrier_id, received)


class RingWithLateAnswers(Ring):
    lease_table = TableThatTakesLateAnswers


class TableWithoutBase(LeaseTable):
    """Takes what has arrived for all that was ever granted, though the entry had a former life."""

    def reconcile(self, reader_id: int, incarnation: int, barrier_id: int, received: Mapping[int, int]) -> int | None:
        books = self._readers.get(reader_id)
        if books is None:
            return None
        base, books.base = books.base, np.zeros_like(books.base)
        try:
            return super().reconcile(reader_id, incarnation, barrier_id, received)
        finally:
            books.base = base


class RingWithoutBase(Ring):
    lease_table = TableWithoutBase


class RingThatAsksOnlyAfterGaps(Ring):
    def _may_open_barrier(self, world: World, reader_id: int) -> bool:
        return self.leases._readers[reader_id].barrier is not None and super()._may_open_barrier(world, reader_id)


class RingThatIgnoresLeases(Ring):
    def _is_leased(self, leases: LeaseTable) -> Callable[[int], bool]:
        return lambda slot: False


# ---- engine


class EngineThatTakesUsedEntries(Engine):
    """Takes an entry whose byte only a worker of a former engine still holds."""

    def try_lock(self, fd: int, reader_id: int) -> bool:
        return ByteLocks.try_shared(fd, ByteLocks.reader_byte(reader_id))


class EngineThatZeroesCells(Engine):
    """Zeroes the counts of an entry's former life before the entry bears another incarnation."""

    def begin_taking(self, world: World, reader_id: int) -> Taking:
        ring = world.own_ring()
        first = ring.layout.returned_word(reader_id, 0)
        ring.words[first : first + 2 * ring.layout.num_slots] = 0
        return super().begin_taking(world, reader_id)


class EngineWithoutIncarnation(Engine):
    def incarnation_for(self, epoch: int) -> int:
        return 7


class EngineThatDoesNotWaitForWorkers(Engine):
    """Sends plans before `Attached`."""

    waits_for_workers = False


class BookWithoutSteps(HeldLeases):
    def read_done(self, worker_epoch: int, step: int, seq: int) -> None:
        held = self._held.get(seq)
        for epoch, planned in list(held.reads) if held is not None else ():
            if epoch == worker_epoch:
                super().read_done(worker_epoch, planned, seq)


class BookWithoutWorkerEpochs(HeldLeases):
    def read_done(self, worker_epoch: int, step: int, seq: int) -> None:
        held = self._held.get(seq)
        for epoch, planned in list(held.reads) if held is not None else ():
            if planned == step:
                super().read_done(epoch, step, seq)


class BookThatGivesBackAtOnce(HeldLeases):
    """Gives back when the request ends, read or not."""

    def _settle(self, seq: int) -> None:
        if self._held[seq].has_ended:
            self._held[seq].reads.clear()
        super()._settle(seq)


class EngineWithoutSteps(Engine):
    lease_book = BookWithoutSteps


class EngineWithoutWorkerEpochs(Engine):
    lease_book = BookWithoutWorkerEpochs


class EngineThatGivesBackAtOnce(Engine):
    lease_book = BookThatGivesBackAtOnce


class ReceivedThatAnswersForOthers(ReceivedLeases):
    """Answers a question that was meant for the engine that had the entry, or another one, before."""

    def answer(self, incarnation: int, last_seq: int, slots: Iterable[int]) -> dict[int, int] | None:
        return super().answer(self.incarnation, last_seq, slots)


class EngineThatAnswersForOthers(Engine):
    received_leases = ReceivedThatAnswersForOthers


# ---- worker


class WorkerThatStays(Worker):
    """Cannot see that its engine is dead: asks for the entry's byte, which it holds itself."""

    sees_death = False


_STARTED = Setting(started="all")
_BARRIERS = Setting(started="all", num_ranks=0, max_barriers=2)
_WORK = Budget(puts=1, grants=1, plans=1)


def _mutant(
    name: str, breaks: str, actors: Actors, budget: Budget = _WORK, setting: Setting = _STARTED
) -> Mutant[Scenario]:
    return Mutant(name, Scenario(name, replace(setting, actors=actors), budget), breaks)


MUTANTS = (
    _mutant("leases are revoked on time-out", "I1", Actors(ring=RingThatRevokes)),
    _mutant(
        *("an entry is taken over while a worker of its former engine lives", "I1"),
        Actors(engine=EngineThatTakesUsedEntries),
        replace(_WORK, kills=1),
    ),
    _mutant(
        *("a repeated Hello is taken for a new life", "I1"),
        Actors(ring=RingWithRepeatedHello),
        Budget(puts=1, grants=1, hellos=1),
    ),
    _mutant(
        *("the late Hello of a dead engine is accepted", "I1"),
        Actors(ring=RingThatTrustsHello),
        Budget(puts=1, grants=1, kills=1),
        Setting(num_ranks=0),
    ),
    _mutant(
        *("who takes an entry zeroes the counts of its former life", "InvariantError"),
        Actors(engine=EngineThatZeroesCells),
        Budget(puts=1, grants=1, kills=1),
        replace(_STARTED, num_ranks=0),
    ),
    _mutant(
        *("all lives of an entry have one incarnation", "I6"),
        Actors(engine=EngineWithoutIncarnation),
        Budget(puts=1, grants=1, kills=1),
    ),
    _mutant(
        *("a plan is sent before Attached", "I1"),
        Actors(engine=EngineThatDoesNotWaitForWorkers),
        replace(_WORK, kills=1),
        Setting(started="engine"),
    ),
    _mutant("read_done without its step", "I1", Actors(engine=EngineWithoutSteps), replace(_WORK, plans=2)),
    _mutant(
        *("read_done without worker epoch", "I1"),
        Actors(engine=EngineWithoutWorkerEpochs),
        setting=replace(_STARTED, num_ranks=2),
    ),
    _mutant(
        *("a late answer to an earlier barrier is accepted", "I1"),
        Actors(ring=RingWithLateAnswers),
        Budget(puts=1, grants=2),
        _BARRIERS,
    ),
    _mutant(
        *("barriers only after gaps, and the last descriptor is lost", "I2"),
        Actors(ring=RingThatAsksOnlyAfterGaps),
        Budget(grants=1, lost_from_writer=1),
        _BARRIERS,
    ),
    _mutant(
        *("a barrier's answer without what the entry held at attach", "I1"),
        Actors(ring=RingWithoutBase),
        Budget(puts=1, grants=2, kills=1),
        replace(_BARRIERS, max_barriers=1),
    ),
    _mutant(
        *("an engine answers a barrier of its predecessor", "RemoteProtocolError"),
        Actors(engine=EngineThatAnswersForOthers),
        replace(_WORK, kills=1),
        replace(_STARTED, max_barriers=1),
    ),
    _mutant("the allocator ignores leases", "I1", Actors(ring=RingThatIgnoresLeases)),
    _mutant("give-back before reading ends", "I1", Actors(engine=EngineThatGivesBackAtOnce)),
    _mutant(
        *("a lost plan is never overdue", "I2"),
        Actors(has_overdue_kills=False),
        Budget(grants=1, plans=1, lost_plans=1),
    ),
    _mutant(
        *("a worker does not see that its engine is dead", "I2"),
        Actors(worker=WorkerThatStays),
        Budget(grants=1, kills=1),
    ),
)
