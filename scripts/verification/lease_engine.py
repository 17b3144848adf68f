"""One engine process: an entry of the ring, the leases that it holds, its workers.

The product's own: `ReaderEntry` with its `ReceivedLeases`, `HeldLeases`, `WorkerGroup`.

An entry is taken one step per event, so that everybody else can act, and everybody die, between any two:

    lock the byte exclusively --> write the incarnation --> share the byte, lock the engine's own --> Hello

The words and the byte locks that this touches are the product's; `mmcached.shm.ring.reader_entry` says why the order is
this one. A test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, NamedTuple, ParamSpec

from mmcached.engine.server.leases import HeldLeases
from mmcached.engine.server.worker_group import WorkerGroup
from mmcached.shm.ring.reader_entry import ReaderEntry
from mmcached.shm.ring.received import ReceivedLeases
from mmcached.wire.handle import Handle
from mmcached.wire.messages.engine import WorkerAttached, WorkerHello
from scripts.verification.explorer import Event, Violation
from scripts.verification.lease_between import (
    BarrierAnswer,
    BarrierQuestion,
    ByteLocks,
    Descriptor,
    GapReport,
    ModelControl,
    Plan,
    ReadDone,
    ReaderHello,
    Said,
    ToWorker,
)
from scripts.verification.lease_copies import (
    book_key,
    copy_book,
    copy_group,
    copy_reader_entry,
    group_key,
    reader_entry_key,
)

if TYPE_CHECKING:
    from scripts.verification.lease_world import World

Args = ParamSpec("Args")
CONFIG_DIGEST = ""


class Outbox:
    """In place of the channel to the workers; a worker's epoch stands for its connection."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, ToWorker]] = []

    def send(self, peer: bytes, message: ToWorker, payload: Sequence[bytes] = ()) -> None:
        del payload
        self.sent.append((int(peer), message))


class Engine:
    """The `number`-th engine process; that number is also the incarnation in its messages to workers.

    Attributes:
        taking: the entry that is being taken. Nothing else is done meanwhile, as in the product.
    """

    lease_book: ClassVar[type[HeldLeases]] = HeldLeases
    received_leases: ClassVar[type[ReceivedLeases]] = ReceivedLeases
    waits_for_workers: ClassVar[bool] = True

    number: int
    step: int
    taking: Taking | None
    entry: ReaderEntry | None
    book: HeldLeases
    group: WorkerGroup
    returned: list[Handle]

    @classmethod
    def start(cls, number: int, num_workers: int) -> Engine:
        engine = cls()
        engine.number, engine.step = number, 0
        engine.taking = engine.entry = None
        engine.returned = []
        engine.book = cls.lease_book(engine.returned.append)
        channel: Any = Outbox()
        engine.group = WorkerGroup(channel, num_workers, incarnation=number, config_digest=CONFIG_DIGEST)
        return engine

    def copy(self) -> Engine:
        made = type(self)()
        made.number, made.step, made.taking = self.number, self.step, self.taking
        made.entry = self.entry and copy_reader_entry(self.entry)
        made.returned = []
        made.book = copy_book(self.book, made.returned.append)
        made.group = copy_group(self.group, Outbox())
        return made

    def key(self) -> object:
        entry_key = self.entry and reader_entry_key(self.entry)
        return (self.number, self.step, self.taking, entry_key, book_key(self.book), group_key(self.group))

    @property
    def name(self) -> str:
        return f"engine {self.number}"

    def check_integrity(self) -> None:
        self.book.check_integrity()

    def live_leases(self) -> list[int]:
        """Return the seqs of leases whose request has not ended."""
        return [seq for seq, held in self.book._held.items() if not held.has_ended]

    def incarnation_for(self, epoch: int) -> int:
        return 10 * self.number + epoch

    # ---- what it may do next

    def events(self, world: World) -> Iterator[Event]:
        if self.taking is not None:
            label = ("goes on: entry", self.taking.reader_id, "is", self.taking.stage.value)
            yield self._event(label, Engine.go_on)
            return
        if self.entry is None or self.entry.announcement.epoch != world.ring.epoch:
            for reader_id in self._entries_to_take(world):
                yield self._event(("locks entry", reader_id), Engine.lock_entry, reader_id)
        elif world.budget.hellos:
            yield self._event(("says hello again",), Engine.repeat_hello).not_counted_on()
        if self.entry is not None:
            yield from self._working_events(world)

    def _working_events(self, world: World) -> Iterator[Event]:
        if world.queues.to_engine:
            yield self._event(("takes", Said(world.queues.to_engine[0])), Engine.take_from_writer)
        for rank, queue in enumerate(world.queues.from_worker):
            if queue:
                yield self._event(("takes", Said(queue[0])), Engine.take_from_worker, rank)
        for seq in self.live_leases():
            yield self._event(("ends the request of lease", seq), Engine.end_request, seq)
            if world.budget.plans and self._can_plan():
                yield self._event(("plans a read under lease", seq), Engine.plan, seq).not_counted_on()

    def _event(
        self,
        label: tuple[object, ...],
        method: Callable[Concatenate[Engine, World, Args], object],
        *args: Args.args,
        **kwargs: Args.kwargs,
    ) -> Event:
        return Event((self.name, *label), lambda world: method(world.own_engine(), world, *args, **kwargs))

    def _entries_to_take(self, world: World) -> Iterator[int]:
        """Yield the first entry that nobody uses."""
        locks = world.locks.copy()
        fd = world.ring.control(locks, self.name).fd
        free = (reader_id for reader_id in range(world.ring.layout.max_readers) if self.try_lock(fd, reader_id))
        yield from [reader_id for reader_id in [next(free, None)] if reader_id is not None]

    def try_lock(self, fd: int, reader_id: int) -> bool:
        return ByteLocks.try_exclusive(fd, ByteLocks.reader_byte(reader_id))

    def _can_plan(self) -> bool:
        return self.group.are_all_attached or not self.waits_for_workers

    # ---- taking an entry

    def lock_entry(self, world: World, reader_id: int) -> None:
        """Begin to take an entry, in place of that of a former ring: its leases are nobody's any more."""
        if self.entry is not None:
            self.book.forget_all()
            world.own_locks().release(self.name, self.entry.announcement.epoch)
            self.entry = None
        locked = self.try_lock(world.ring.control(world.own_locks(), self.name).fd, reader_id)
        assert locked
        self.taking = self.begin_taking(world, reader_id)

    def begin_taking(self, world: World, reader_id: int) -> Taking:
        epoch = world.ring.epoch
        return Taking(epoch, reader_id, self.incarnation_for(epoch))

    def go_on(self, world: World) -> None:
        """Do the next step of taking the entry; of a ring that has gone meanwhile none is taken."""
        taking = self.taking
        assert taking is not None
        if taking.epoch != world.ring.epoch:
            world.own_locks().release(self.name, taking.epoch)
            self.taking = None
            return
        control = world.own_ring().control(world.own_locks(), self.name)
        if taking.stage is not Stage.SHARED:
            self.taking = taking.next(control)
            return
        self.taking = None
        self.entry = ReaderEntry(world.ring.announcement, control, taking.reader_id, taking.incarnation)
        self.entry._received = self.received_leases(taking.incarnation)
        self._say_hello(world, self.entry)
        self.group.attach_all(self.entry)
        self._post(world)

    def repeat_hello(self, world: World) -> None:
        assert self.entry is not None
        world.spend("hellos")
        self._say_hello(world, self.entry)

    def _say_hello(self, world: World, entry: ReaderEntry) -> None:
        world.own_queues().send_to_writer(
            self.number, ReaderHello(entry.announcement.epoch, entry.reader_id, entry.incarnation, self.number)
        )

    # ---- P0

    def take_from_writer(self, world: World) -> None:
        assert self.entry is not None
        message = world.own_queues().take_for_engine()
        epoch = self.entry.announcement.epoch
        match message:
            case Descriptor(handle, lease):
                if self.entry.has_gap_before(handle, lease):
                    world.own_queues().send_to_writer(self.number, GapReport(epoch, lease.incarnation))
                if self.entry.receive(handle, lease):
                    if message.meant_for != self.number:
                        raise Violation(f"I6: {self.name} takes a lease of engine {message.meant_for} for its own")
                    self.book.hold(lease.seq, handle, lease)
            case BarrierQuestion(asked_epoch, incarnation, barrier_id, last_seq, slots):
                answer = self.entry.answer_barrier(incarnation, last_seq, slots) if asked_epoch == epoch else None
                if answer is not None:
                    received = tuple(sorted(answer.items()))
                    world.own_queues().send_to_writer(
                        self.number, BarrierAnswer(epoch, incarnation, barrier_id, received)
                    )

    # ---- workers

    def take_from_worker(self, world: World, rank: int) -> None:
        match world.own_queues().take_from_worker(rank):
            case WorkerHello() as hello:
                accepted = self.group.hello(b"%d" % hello.worker_epoch, hello)
                assert accepted is not None
                if not accepted[0].is_attached:
                    self.group.attach(accepted[0], self.entry)
            case WorkerAttached() as attached:
                link = self.group.attached(attached, self.entry)
                if link is not None and link.former_epoch is not None:
                    self.book.worker_died(link.former_epoch)
                    link.former_epoch = None
            case ReadDone() as done:
                if self.group.by_epoch(done.worker_epoch) is not None and done.engine_incarnation == self.number:
                    self.book.read_done(done.worker_epoch, done.step, done.seq)
        self._post(world)

    def plan(self, world: World, seq: int) -> None:
        """Let every worker read under a lease; booked before the first plan is sent."""
        world.spend("plans")
        self.step += 1
        handle = self.book._held[seq].handle
        self.book.reading([seq], self.group.epochs, self.step)
        for link in self.group.in_rank_order():
            plan = Plan(self.number, link.worker_epoch, self.step, seq, handle)
            world.send_to_worker(link.worker_epoch, plan)

    def end_request(self, world: World, seq: int) -> None:
        self.book.end_request(seq)
        self._post(world)

    def _post(self, world: World) -> None:
        """Send what the group has written, and write what the book has given back."""
        outbox: Any = self.group._channel
        for worker_epoch, message in outbox.sent:
            world.send_to_worker(worker_epoch, message)
        outbox.sent = []
        for handle in self.returned:
            self._give_back(world, handle)
        self.returned.clear()

    def _give_back(self, world: World, handle: Handle) -> None:
        entry = self.entry
        assert entry is not None
        if entry.announcement.epoch != world.ring.epoch:
            return  # into a ring that nobody looks at any more
        ring = world.own_ring()
        if ring.incarnation_in_entry(entry.reader_id) != entry.incarnation:
            raise Violation(f"I4: {self.name} writes into entry {entry.reader_id}, which another incarnation has taken")
        entry._control = ring.control(world.locks, self.name)
        entry._control.map_entry(entry.reader_id)
        entry.give_back(handle)
        entry._control = None


class Stage(Enum):
    LOCKED = "locked"
    NAMED = "named"
    SHARED = "shared"


class Taking(NamedTuple):
    """An entry that is being taken."""

    epoch: int
    reader_id: int
    incarnation: int
    stage: Stage = Stage.LOCKED

    def next(self, control: ModelControl) -> Taking:
        """Do the next step; after the last one only the Hello is missing."""
        reader_id, layout = self.reader_id, control.layout
        if self.stage is Stage.LOCKED:
            control.words[layout.incarnation_word(reader_id)] = self.incarnation
            return self._replace(stage=Stage.NAMED)
        # The product shares the one byte and then locks the other: in between it holds the entry's byte either way.
        ByteLocks.downgrade(control.fd, ByteLocks.reader_byte(reader_id))
        if not ByteLocks.try_exclusive(control.fd, ByteLocks.engine_byte(reader_id, layout.max_readers)):
            raise Violation(f"entry {reader_id} was free, and its engine byte is taken")
        return self._replace(stage=Stage.SHARED)
