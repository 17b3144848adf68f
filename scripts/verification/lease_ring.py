"""P0: one ring, its writer's books, and the words that it shares with its readers.

The product's own: `LeaseTable` and `ReaderWatch`, `ChunkTable` with its allocator. In place of the
data object: of each unit, which generation was written there last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Concatenate, ParamSpec

import msgspec
import numpy as np

from mmcached.shm.ring.allocator import Extent
from mmcached.shm.ring.chunks import ChunkTable
from mmcached.shm.ring.leases import LeaseTable
from mmcached.shm.ring.reader_watch import ReaderWatch
from mmcached.shm.segment.board import Board
from mmcached.shm.segment.layout import ATTACHED_WORD, Layout
from mmcached.wire.errors import LeaseRefused, PeerGone
from mmcached.wire.handle import Handle, LeaseId, RingAnnouncement
from scripts.verification.explorer import Event, Violation
from scripts.verification.lease_between import (
    UNIT,
    BarrierAnswer,
    BarrierQuestion,
    Description,
    Descriptor,
    GapReport,
    LockTable,
    ModelControl,
    ReaderHello,
    Said,
    SmallLayout,
    Words,
)
from scripts.verification.lease_copies import chunks_key, copy_chunks, copy_table, table_key

if TYPE_CHECKING:
    from scripts.verification.lease_world import World

Args = ParamSpec("Args")


class Ring:
    """One epoch. `meant_for` is what nobody in it knows: the engine process behind each attached reader."""

    lease_table: ClassVar[type[LeaseTable]] = LeaseTable
    reader_watch: ClassVar[type[ReaderWatch]] = ReaderWatch

    announcement: RingAnnouncement
    layout: Layout
    words: Words
    granted: Words
    board: Words
    leases: LeaseTable
    watch: ReaderWatch
    chunks: ChunkTable
    data: DataObject
    meant_for: dict[int, int]
    _known: dict[object, bool]

    @classmethod
    def create(cls, layout: SmallLayout, *, epoch: int, quota_bytes: int | None = None) -> Ring:
        """Make a ring in which nothing lies."""
        ring = cls()
        ring._known = {}
        sizes = (layout.data_bytes, layout.num_slots, layout.max_readers)
        ring.announcement = RingAnnouncement(0, f"{epoch:032x}", epoch, *sizes)
        ring.layout = layout
        ring.words = np.zeros(layout.ctl_bytes // 8, np.uint64)
        ring.data = DataObject([0] * (layout.data_bytes // UNIT))
        ring.meant_for = {}
        ring.granted = np.zeros((layout.max_readers, layout.num_slots), np.uint64)
        ring.board = np.zeros(ATTACHED_WORD + layout.max_readers, np.uint64)
        control = ring.control(LockTable(), "P0")
        ring.leases = cls.lease_table(control.counts(), ring.granted, quota_bytes=quota_bytes)
        ring.watch = ring._new_watch(control, cls.reader_watch)
        ring.chunks = ChunkTable(
            layout.data_bytes, layout.num_slots, is_leased=ring._is_leased(ring.leases), leased_slots=tuple
        )
        return ring

    def copy(self) -> Ring:
        made = type(self)()
        made._known = {}
        made.announcement, made.layout = self.announcement, self.layout
        made.words, made.data, made.meant_for = self.words.copy(), self.data.copy(), self.meant_for.copy()
        made.granted, made.board = self.granted.copy(), self.board.copy()
        control = made.control(LockTable(), "P0")
        made.leases = copy_table(self.leases, control, made.granted)
        made.watch = made._new_watch(control, type(self.watch))
        made.chunks = copy_chunks(self.chunks, made._is_leased(made.leases))
        return made

    def key(self) -> object:
        return (
            *(self.epoch, self.words.tobytes(), self.board.tobytes(), self.data.key()),
            tuple(sorted(self.meant_for.items())),
            *(table_key(self.leases), chunks_key(self.chunks)),
        )

    def _new_watch(self, control: ModelControl, watch: type[ReaderWatch]) -> ReaderWatch:
        board = Board(self.board.data.cast("B").cast("Q"))
        return watch(control, self.leases, board, lambda reader_id: True)

    @property
    def epoch(self) -> int:
        return self.announcement.epoch

    def control(self, locks: LockTable, holder: str) -> ModelControl:
        """Return the control object as a process sees it."""
        return ModelControl(self.words, self.layout, Description(locks, self.epoch, holder))

    def incarnation_in_entry(self, reader_id: int) -> int:
        return int(self.words[self.layout.incarnation_word(reader_id)])

    def holds(self, handle: Handle) -> bool:
        """Return whether a chunk's bytes are untouched; those of another epoch's ring nobody writes any more."""
        return handle.epoch != self.epoch or self.data.holds(handle)

    def is_at_rest(self) -> bool:
        """Return whether every lease is back and nobody waits for a barrier."""
        table = self.leases
        return not any(books.barrier for books in table._readers.values()) and table.num_leases() == 0

    def check_integrity(self) -> None:
        self.leases.check_integrity()
        self.chunks.check_integrity()

    # ---- what it may do next

    def events(self, world: World) -> Iterator[Event]:
        if world.budget.puts:
            for units in world.setting.put_units:
                if self._know(("fits", units), partial(self._fits, units)):
                    yield self._event(("P0 puts", units), Ring.put_more, units).not_counted_on()
        if world.budget.grants or world.budget.discards:
            yield from self._handle_events(world)
        for reader_id in self.leases.incarnations():
            if self._may_open_barrier(world, reader_id):
                yield self._event(("P0 opens a barrier, reader", reader_id), Ring.open_barrier, reader_id)
        if self._know(world.locks, lambda: self.copy().poll_deaths(world)):
            yield self._event(("P0 looks at the locks and cells",), Ring.poll_deaths)
        for engine, queue in enumerate(world.queues.to_writer, start=1):
            if queue:
                yield self._event(("P0 takes", Said(queue[0])), Ring.take, engine)

    def _handle_events(self, world: World) -> Iterator[Event]:
        for handle in self.chunks:
            generation = handle.generation
            for reader_id in self.leases.grantable_readers() if world.budget.grants else ():
                if self._know((reader_id, handle), partial(self._is_granted, reader_id, handle)):
                    label = ("P0 grants generation", generation, "to reader", reader_id)
                    yield self._event(label, Ring.send, reader_id, handle).not_counted_on()
            if world.budget.discards:
                yield self._event(("P0 discards generation", generation), Ring.discard, handle).not_counted_on()

    def _event(
        self,
        label: tuple[object, ...],
        method: Callable[Concatenate[Ring, World, Args], object],
        *args: Args.args,
        **kwargs: Args.kwargs,
    ) -> Event:
        return Event(label, lambda world: method(world.own_ring(), world, *args, **kwargs))

    def _may_open_barrier(self, world: World, reader_id: int) -> bool:
        """The product asks every second while leases are out: at any time, that is, but not without end."""
        table = self.leases
        books = table._readers[reader_id]
        if books.is_stopped or len(world.queues.barrier_ids()) >= world.setting.max_barriers:
            return False
        return books.barrier is not None or bool(table._all_outstanding(reader_id).any())

    def _know(self, question: object, answer: Callable[[], bool]) -> bool:
        """Ask once: many states share this ring, and none changes it."""
        if question not in self._known:
            self._known[question] = answer()
        return self._known[question]

    # ---- doing it

    def _is_leased(self, leases: LeaseTable) -> Callable[[int], bool]:
        return leases.is_pinned

    def _fits(self, units: int) -> bool:
        """Raises Violation if a put that is refused has changed something."""
        before = self.key()
        fits = self.chunks.plan(payload_bytes(units)) is not None
        if not fits and self.key() != before:
            raise Violation("a refused put has changed something")
        return fits

    def put_more(self, world: World, units: int) -> None:
        world.spend("puts")
        self.put(units)

    def put(self, units: int) -> None:
        """Claim, write, publish: no message comes between."""
        nbytes = payload_bytes(units)
        plan = self.chunks.plan(nbytes)
        assert plan is not None
        generation, _ = self.chunks.claim(plan)
        extent = plan.extent
        self.data.write(extent, generation)
        names = self.announcement
        self.chunks.publish(Handle(names.ring_id, names.epoch, extent.slot, generation, extent.offset, nbytes))

    def grant(self, reader_id: int, handle: Handle) -> LeaseId | None:
        """Count a lease; None: refused."""
        before = table_key(self.leases)
        try:
            return self.leases.grant(reader_id, handle.slot, num_units(handle) * UNIT)
        except (PeerGone, LeaseRefused):
            if table_key(self.leases) != before and not self.leases._quota_bytes:
                raise Violation("a refused grant has changed something") from None
            return None

    def _is_granted(self, reader_id: int, handle: Handle) -> bool:
        return self.copy().grant(reader_id, handle) is not None

    def send(self, world: World, reader_id: int, handle: Handle) -> None:
        """Count, then send; and what cannot be sent is undone as if it had not been."""
        world.spend("grants")
        self.chunks.touch(handle)  # somebody has asked for it
        before = table_key(self.leases)
        lease = self.grant(reader_id, handle)
        assert lease is not None
        if self.leases._quota_bytes is None:
            self.leases.undo(reader_id, handle.slot, lease)
            if table_key(self.leases) != before:
                raise Violation("an undone grant has left something")
            lease = self.grant(reader_id, handle)
            assert lease is not None
        world.own_queues().send_to_engine(Descriptor(handle, lease, self.meant_for[reader_id]))

    def discard(self, world: World, handle: Handle) -> None:
        world.spend("discards")
        self.chunks.forget(handle, is_leased=self.leases.is_pinned(handle.slot))

    def open_barrier(self, world: World, reader_id: int) -> None:
        barrier = self.leases.open_barrier(reader_id)
        if barrier is not None:
            question = BarrierQuestion(
                self.epoch, barrier.incarnation, barrier.barrier_id, barrier.last_seq, barrier.slots
            )
            world.own_queues().send_to_engine(question)

    def poll_deaths(self, world: World) -> bool:
        """Look at the locks and at all cells; return whether that has told anything new."""
        before = table_key(self.leases)
        self._seeing(world).poll_deaths()
        return table_key(self.leases) != before

    def take(self, world: World, engine: int) -> None:
        """Handle the first message of an engine process, dead or alive."""
        message = world.own_queues().take_for_writer(engine)
        if message.epoch != self.epoch:
            return
        match message:
            case ReaderHello():
                self.accept(world, message)
            case GapReport() | BarrierAnswer():
                for reader_id, incarnation in self.leases.incarnations().items():
                    if incarnation == message.incarnation:
                        self._reported(world, reader_id, message)

    def _reported(self, world: World, reader_id: int, message: GapReport | BarrierAnswer) -> None:
        if isinstance(message, BarrierAnswer):
            self.leases.reconcile(reader_id, message.incarnation, message.barrier_id, dict(message.received))
        elif len(world.queues.barrier_ids()) < world.setting.max_barriers:
            self.open_barrier(world, reader_id)

    def accept(self, world: World, hello: ReaderHello) -> None:
        if self._seeing(world).attach(hello.reader_id, hello.incarnation):
            self.meant_for[hello.reader_id] = hello.sender

    @property
    def num_barriers(self) -> int:
        return self.leases._num_barriers

    def barrier_ids(self) -> set[int]:
        return {books.barrier.barrier_id for books in self.leases._readers.values() if books.barrier is not None}

    def renumber_barriers(self, new_ids: dict[int, int]) -> None:
        """Give barriers other numbers, in the same order: else their numbers alone would make states without end."""
        table = self.leases
        table._num_barriers = len(new_ids)
        for books in table._readers.values():
            if books.barrier is not None:
                books.barrier = msgspec.structs.replace(books.barrier, barrier_id=new_ids[books.barrier.barrier_id])

    def _seeing(self, world: World) -> ReaderWatch:
        """Return the watch, looking at the locks of this world."""
        self.watch._control.fd = Description(world.locks, self.epoch, "P0").as_fd()
        return self.watch


class DataObject:
    """Generation 0 = never written."""

    def __init__(self, generations: list[int]) -> None:
        self._generations = generations

    def copy(self) -> DataObject:
        return DataObject(self._generations.copy())

    def key(self) -> object:
        return tuple(self._generations)

    def write(self, extent: Extent, generation: int) -> None:
        self._generations[extent.offset // UNIT : extent.end // UNIT] = [generation] * (extent.size // UNIT)

    def holds(self, handle: Handle) -> bool:
        """Return whether every byte of a chunk is as it was published."""
        first = handle.offset // UNIT
        written = self._generations[first : first + num_units(handle)]
        return all(generation == handle.generation for generation in written)


def payload_bytes(units: int) -> int:
    """Return the payload that fills so many units."""
    return units * UNIT


def num_units(handle: Handle) -> int:
    return handle.nbytes // UNIT
