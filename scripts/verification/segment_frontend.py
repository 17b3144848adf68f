"""Models the frontend of a store of several segments: the only writer of index, slot table, grants and answers.

    receive   a put: judge its place, publish it under a generation of its own, answer
    evict     retire, seal, erase; only then its place is free
    grant     a free place of a writer's segment to the writer
    move      copy a record out of a nursery into a segment of the frontend's own, publish that, then drop the old one
    take over a segment whose writer's lock is free; remove it when no slot names a place in it
    flush     floor, every record, epoch, answer
    adopt     begin with what a dead frontend has left: all but `Books` lies in shared memory

What the frontend keeps for itself are its `Books`; a successor derives them from the words, and errs on one side: what
may still be the writer's is, until the writer has said how far it has come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from mmcached.shm.ring.self_lease import seal
from mmcached.shm.ring.slot_table import IS_SEALED, SlotRecord
from mmcached.shm.segment.layout import ALIGNMENT
from scripts.verification.explorer import Violation
from scripts.verification.replay import Machine
from scripts.verification.segment_words import KEYS, MAIN, MAX_UNITS, NUM_ENTRIES, Map, pack, unpack
from scripts.verification.self_lease_words import ModelStore

KEPT, REFUSED = 1, 2
"""Answers to a put."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Receive:
    """Take the next message of a writer, if one has come."""

    writer: int = 1


@dataclass(frozen=True, slots=True)
class PutInMain:
    """Put a record that has come inline."""

    key: int


@dataclass(frozen=True, slots=True)
class Evict:
    """Make room where the record of a key lies, if nobody reads it."""

    key: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget the record of a key; its place is free when nobody reads it any more."""

    key: int


@dataclass(frozen=True, slots=True)
class Collect:
    """Free the places of what was dropped, where nobody reads it any more."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Let a writer have a free place of its segment, if there is one."""

    writer: int = 1


@dataclass(frozen=True, slots=True)
class BeginMove:
    """Copy the record of a key into a free place of the frontend's own."""

    key: int


@dataclass(frozen=True, slots=True)
class EndMove:
    """Publish the copy, and drop the record that was copied."""


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Own the segment of a writer that is dead."""

    writer: int = 1


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a segment of a dead writer if nothing lies in it."""

    writer: int = 1


@dataclass(frozen=True, slots=True)
class Flush:
    """Forget all records, and begin an epoch."""


@dataclass(frozen=True, slots=True)
class Died:
    """Wait until a process is dead."""

    role: int


@dataclass(frozen=True, slots=True)
class Settle:
    """Wait until these processes have ended; then all room must have an owner."""

    roles: tuple[int, ...]


Job = (
    Receive
    | PutInMain
    | Evict
    | Drop
    | Collect
    | Grant
    | BeginMove
    | EndMove
    | TakeOver
    | Remove
    | Flush
    | Died
    | Settle
)


class Row(NamedTuple):
    """One slot that holds something."""

    slot: int
    generation: int
    is_valid: bool
    place: int
    key: int


class Move(NamedTuple):
    """A record that was copied, and the place of its copy."""

    slot: int
    generation: int
    place: int


class Books(NamedTuple):
    """What a frontend knows beside the words that it has written.

    Attributes:
        life: of the frontend; tells its connections from those of the one before.
        free: places that the frontend may grant, or fill if they are its own.
        owned: segments that the frontend alone writes.
        next_grant: of each writer, the first number whose put may still come; None: it has not said so yet.
        received: messages that were taken, of each writer.
    """

    life: int
    free: frozenset[int]
    owned: frozenset[int]
    next_grant: tuple[int | None, ...]
    received: tuple[int, ...]
    move: Move | None = None


class Frontend:
    """The frontend while it does one job; `books` is what it remembers until the next."""

    def __init__(self, machine: Machine, the_map: Map, books: Books) -> None:
        self.machine = machine
        self.map = the_map
        self.books = books
        self.slots = the_map.slot_table()

    def do(self, job: Job) -> None:
        match job:
            case Receive(writer):
                self.receive(writer)
            case PutInMain(key):
                self.put_in_main(key)
            case Evict(key):
                self.evict(key)
            case Drop(key):
                self.drop(self.find(key))
            case Collect():
                self.collect()
            case Grant(writer):
                self.grant(writer)
            case BeginMove(key):
                self.begin_move(key)
            case EndMove():
                self.end_move()
            case TakeOver(writer):
                self.take_over(writer)
            case Remove(writer):
                self.remove(writer)
            case Flush():
                self.flush()
            case Died(role):
                self.machine.wait(self.map.word("alive", role), 0)
            case Settle(roles):
                self.settle(roles)

    # ---- words

    def load(self, *name: object) -> int:
        return self.machine.load(self.map.word(*name))

    def store(self, value: int, *name: object) -> None:
        self.machine.store(self.map.word(*name), value)

    def say(self, value: int, *name: object) -> None:
        """Store what others act upon: all before it is done."""
        self.machine.store_release(self.map.word(*name), value)

    def rows(self) -> Iterator[Row]:
        """Yield each slot that holds something, in whatever state."""
        for slot in range(self.map.num_slots):
            if mark := self.load("mark", slot):
                place = self.load("place", slot) // ALIGNMENT
                key = [first for first, _ in KEYS].index(self.load("key", slot))
                yield Row(slot, (mark & ~IS_SEALED) >> 1, bool(mark & 1), place, key)

    def occupied(self) -> set[int]:
        return {row.place for row in self.rows()}

    def find(self, key: int) -> Row | None:
        return next((row for row in self.rows() if row.is_valid and row.key == key), None)

    def is_leased(self, slot: int) -> bool:
        for reader_id in range(self.map.num_readers):
            returned = self.load("returned", reader_id, slot)  # first: see `leases`
            if self.load("taken", reader_id, slot) != returned and self.load("alive", self.map.reader(reader_id)):
                return True
        return False

    # ---- records

    def receive(self, writer: int) -> None:
        """Take the next message of this connection; the first says how far the writer has come."""
        number = self.books.received[writer]
        while number < self.map.num_puts:
            message = self.load("put", writer, number)
            if not message:
                return
            life, grant, *content = unpack(message, 6)
            number += 1
            self.books = self.books._replace(received=_with(self.books.received, writer, number))
            if life == self.books.life:
                self.hear_hello(writer)
                self.judge(writer, number - 1, grant, content)
                return

    def hear_hello(self, writer: int) -> None:
        """Free what the writer has left unused, if this connection is new."""
        if self.books.next_grant[writer] is None and writer not in self.books.owned:
            _, grant = unpack(self.load("hello", writer), 2)
            self.pass_grants(writer, grant)

    def judge(self, writer: int, number: int, grant: int, content: list[int]) -> None:
        """Publish a put, unless its place is not the writer's any more."""
        epoch, _, _, key = content
        if not self.is_open(writer, grant):
            self.say(REFUSED, "answer", writer, number)
            return
        self.pass_grants(writer, grant + 1, but=grant)
        place, has_key = self.granted_place(writer, grant), self.find(key) is not None
        slot = self.free_slot()
        if has_key or slot is None or epoch != self.load("epoch"):
            self.free(place)
            self.say(KEPT if has_key else REFUSED, "answer", writer, number)
            return
        self.publish(slot, place, key, pack(*content))
        self.say(KEPT, "answer", writer, number)

    def put_in_main(self, key: int) -> None:
        place, slot = self.own_place(), self.free_slot()
        if place is None or slot is None or self.find(key) is not None:
            return
        self.take(place)
        content = pack(self.load("epoch"), 0, 0, key)
        self.store(content, "bytes", place)
        self.publish(slot, place, key, content)

    def publish(self, slot: int, place: int, key: int, content: int) -> None:
        """Let readers find what lies at a place."""
        generation = self.load("last generation") + 1
        self.store(generation, "last generation")
        self.store(content, "content", generation)
        self.slots.fill(slot, SlotRecord(generation, ALIGNMENT * place, ALIGNMENT, 0, KEYS[key]))
        self.slots.publish(slot, generation)
        self.store(key + 1, "shown", slot)

    def evict(self, key: int) -> None:
        row = self.find(key)
        if row is not None:
            self.slots.retire(row.slot)
            if not self.vacate(row):
                self.slots.restore(row.slot)

    def drop(self, row: Row | None) -> None:
        if row is not None:
            self.slots.retire(row.slot)
            self.vacate(row)

    def collect(self) -> None:
        for row in list(self.rows()):
            if not row.is_valid:
                self.vacate(row)

    def vacate(self, row: Row) -> bool:
        """Free the place of what is retired; return False, and change nothing, if it is read."""
        is_sealed = self.seal(row.slot)
        if is_sealed:
            self.slots.erase(row.slot)
            self.store(0, "shown", row.slot)
            self.free(row.place)
        return is_sealed

    def seal(self, slot: int) -> bool:
        return seal(ModelStore(), self.slots, [slot], self.is_leased)

    def flush(self) -> None:
        self.say(self.load("last generation"), "floor")
        for row in list(self.rows()):
            if row.is_valid:
                self.drop(row)
        self.say(self.load("epoch") + 1, "epoch")
        self.say(self.load("epoch"), "flushed")

    # ---- copies

    def begin_move(self, key: int) -> None:
        row, place = self.find(key), self.own_place()
        if row is not None and place is not None and row.place // MAX_UNITS not in self.books.owned:
            self.take(place)
            self.copy(row.place, place)
            self.books = self.books._replace(move=Move(row.slot, row.generation, place))

    def copy(self, source: int, target: int) -> None:
        self.store(self.load("bytes", source), "bytes", target)

    def end_move(self) -> None:
        move, slot = self.books.move, self.free_slot()
        if move is None:
            return
        self.books = self.books._replace(move=None)
        row = self.moved_row(move)
        if row is None or slot is None:
            self.free(move.place)
            return
        self.publish(slot, move.place, row.key, self.load("content", row.generation))
        self.drop(row)

    def moved_row(self, move: Move) -> Row | None:
        """Return the record that was copied if it still is to be found."""
        row = next((row for row in self.rows() if row.slot == move.slot and row.is_valid), None)
        return row if row is not None and row.generation == move.generation else None

    # ---- room

    def grant(self, writer: int) -> None:
        place = min(self.books.free.intersection(self.map.places(writer)), default=None)
        number, first = self.load("num_grants", writer), self.books.next_grant[writer]
        if place is None or first is None or writer in self.books.owned or number - first >= NUM_ENTRIES:
            return
        self.take(place)
        self.store(place, "grant", writer, number % NUM_ENTRIES)
        self.say(number + 1, "num_grants", writer)

    def granted_place(self, writer: int, number: int) -> int:
        return self.load("grant", writer, number % NUM_ENTRIES)

    def open_grants(self, writer: int) -> range:
        """Return the grants that the writer may still use."""
        first, end = self.books.next_grant[writer], self.load("num_grants", writer)
        return range(max(0, end - NUM_ENTRIES) if first is None else first, end)

    def is_open(self, writer: int, number: int) -> bool:
        return writer not in self.books.owned and number in self.open_grants(writer)

    def pass_grants(self, writer: int, end: int, *, but: int = -1) -> None:
        """Free what the writer has not used of its grants before `end`."""
        self.free_unused(writer, [number for number in self.open_grants(writer) if number < end and number != but])
        self.books = self.books._replace(next_grant=_with(self.books.next_grant, writer, end))

    def free_unused(self, writer: int, numbers: list[int]) -> None:
        kept = self.occupied() | {self.granted_place(writer, each) for each in self.open_grants(writer)[len(numbers) :]}
        for number in numbers:
            place = self.granted_place(writer, number)
            if place not in kept:
                self.free(place)

    def own_place(self) -> int | None:
        """Return a free place that the frontend itself may fill."""
        return min((place for place in self.books.free if place // MAX_UNITS in self.books.owned), default=None)

    def free(self, place: int) -> None:
        self.books = self.books._replace(free=self.books.free | {place})

    def take(self, place: int) -> None:
        self.books = self.books._replace(free=self.books.free - {place})

    def free_slot(self) -> int | None:
        taken = {row.slot for row in self.rows()}
        return next((slot for slot in range(self.map.num_slots) if slot not in taken), None)

    # ---- segments of the dead

    def take_over(self, writer: int) -> None:
        if writer not in self.books.owned and self.is_writer_dead(writer):
            self.free_unused(writer, list(self.open_grants(writer)))
            self.books = self.books._replace(owned=self.books.owned | {writer})

    def is_writer_dead(self, writer: int) -> bool:
        """Return whether the lock of a writer's segment is free."""
        return not self.load("alive", self.map.writer(writer))

    def remove(self, writer: int) -> None:
        places = self.map.places(writer)
        if writer in self.books.owned and not self.is_named(writer):
            self.say(0, "name", writer)
            for place in places:  # its memory goes back to the kernel, also that which readers have mapped
                self.store(0, "bytes", place)
            owned, free = self.books.owned - {writer}, self.books.free.difference(places)
            self.books = self.books._replace(owned=owned, free=free)

    def is_named(self, segment: int) -> bool:
        """Return whether a slot names a place in a segment."""
        return bool(self.occupied().intersection(self.map.places(segment)))

    # ---- the end, and the beginning

    def settle(self, roles: Iterable[int]) -> None:
        for role in roles:
            self.machine.wait(self.map.word("ended", role), 1)
        for writer in self.map.writers:
            for _ in range(self.map.num_puts):
                self.receive(writer)
        self.collect()
        for writer in self.map.writers:
            for _ in self.map.places(writer):
                self.grant(writer)
        rows = list(self.rows())
        if not all(row.is_valid for row in rows):
            raise Violation(f"I7: a slot stays retired: {rows}")
        for segment in range(len(self.map.units)):
            if self.load("name", segment):
                self.check_room(segment)

    def check_room(self, segment: int) -> None:
        open_grants = () if segment in self.books.owned else self.open_grants(segment)
        owners = [
            *self.books.free,
            *(row.place for row in self.rows()),
            *(self.granted_place(segment, number) for number in open_grants),
        ]
        for place in self.map.places(segment):
            if place not in owners:
                raise Violation(f"I3: place {place} belongs to nobody")

    def adopt(self) -> None:
        """Derive the books from the words; show what is kept, and drop all else."""
        rows, floor = list(self.rows()), self.load("floor")
        kept: dict[int, Row] = {}
        for row in sorted(rows, key=lambda row: row.generation):
            if row.is_valid and row.generation > floor:
                kept[row.key] = row  # of two the copy, which is younger
        for writer in self.map.writers:
            self.books = self.books._replace(next_grant=_with(self.books.next_grant, writer, None))
        self.adopt_room({row.place for row in rows})
        for slot in range(self.map.num_slots):
            key = next((row.key for row in kept.values() if row.slot == slot), None)
            self.store(0 if key is None else key + 1, "shown", slot)
        for row in rows:
            if row not in kept.values():
                self.drop(row)

    def adopt_room(self, occupied: set[int]) -> None:
        """Own every place in which nothing lies and which no writer may fill."""
        for segment in range(len(self.map.units)):
            if self.load("name", segment):
                numbers = () if segment == MAIN else self.open_grants(segment)
                granted = {self.granted_place(segment, number) for number in numbers}
                for place in set(self.map.places(segment)) - occupied - granted:
                    self.free(place)


def _with(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*values[:index], value, *values[index + 1 :])
