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
from scripts.verification.segment_words import KEYS, MAIN, MAX_UNITS, Map, pack, unpack
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
class Open:
    """Make a segment for a writer that has come, under an id that no segment has had."""

    writer: int


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
    | Open
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
        unused: places that were granted to each writer and have not come back; None: it has not said so yet.
        taken: how many of its grants each writer has taken, as far as it has said.
        received: messages that were taken, of each writer.
    """

    life: int
    free: frozenset[int]
    owned: frozenset[int]
    unused: tuple[frozenset[int] | None, ...]
    taken: tuple[int, ...]
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
            case Open(writer):
                self.open(writer)
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
        """Take the next message that was sent over this connection."""
        self.hear_hello(writer)
        number = self.books.received[writer]
        while number < self.map.num_puts:
            message = self.load("put", writer, number)
            if not message:
                return
            life, taken, place, *content = unpack(message, 7)
            number += 1
            self.books = self.books._replace(received=_with(self.books.received, writer, number))
            if life == self.books.life:
                self.hear_hello(writer)
                self.books = self.books._replace(taken=_with(self.books.taken, writer, taken))
                self.judge(writer, number - 1, place, content)
                return

    def hear_hello(self, writer: int) -> None:
        """Learn what a writer has not used, if its first message since an adoption has come."""
        if self.books.unused[writer] is not None or writer in self.books.owned:
            return
        life, taken, mask = unpack(self.load("hello", writer), 3)
        if life == self.books.life:
            untaken = range(taken, self.load("num_grants", writer))
            granted = {self.load("grant", writer, number % self.map.num_entries) for number in untaken}
            unused = self.map.places_of(writer, mask) | granted
            self.books = self.books._replace(taken=_with(self.books.taken, writer, taken))
            self.set_unused(writer, unused)
            self.free_rest(writer, unused)

    def judge(self, writer: int, number: int, place: int, content: list[int]) -> None:
        """Publish a put, unless its place is not the writer's any more."""
        epoch, _, _, key = content
        if not self.is_of(writer, place):
            self.say(REFUSED, "answer", writer, number)
            return
        self.set_unused(writer, (self.books.unused[writer] or frozenset()) - {place})
        has_key, slot = self.find(key) is not None, self.free_slot()
        if has_key or slot is None or not self.is_current(epoch):
            self.free(place)
            self.say(KEPT if has_key else REFUSED, "answer", writer, number)
            return
        self.publish(slot, place, key, pack(*content))
        self.say(KEPT, "answer", writer, number)

    def is_of(self, writer: int, place: int) -> bool:
        """Return whether a place was granted to a writer and has not come back."""
        return place in (self.books.unused[writer] or frozenset())

    def is_current(self, epoch: int) -> bool:
        """Return whether what was computed in an epoch may be kept."""
        return epoch == self.load("epoch")

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
        self.show(slot, key)
        self.slots.publish(slot, generation)

    def show(self, slot: int, key: int) -> None:
        """Let the index lead from a key to its slot: before the slot is valid, so that nothing valid is not shown."""
        self.store(key + 1, "shown", slot)

    def hide(self, slot: int) -> None:
        """Let the index lead nobody to a slot; what leads to other slots is there before."""
        if self.load("shown", slot):
            self.say(0, "shown", slot)

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
            self.hide(row.slot)
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
        row, place = self.find(key), min(self.books.free.intersection(self.map.places(MAIN)), default=None)
        if row is not None and place is not None and row.place // MAX_UNITS != MAIN:
            self.take(place)
            self.copy(row.place, place)
            self.books = self.books._replace(move=Move(row.slot, row.generation, place))

    def copy(self, source: int, target: int) -> None:
        self.store(self.load("bytes", source), "bytes", target)

    def end_move(self) -> None:
        move, slot = self.books.move, self.free_slot()
        if move is None:
            return
        row = self.moved_row(move)
        if row is None or slot is None:
            self.free(move.place)
        else:
            self.publish(slot, move.place, row.key, self.load("content", row.generation))
            self.count_copy()
            self.drop(row)
        self.books = self.books._replace(move=None)

    def count_copy(self) -> None:
        """Let readers look again that have looked for the copy too early, and for its record too late."""
        self.say(self.load("copies") + 1, "copies")

    def moved_row(self, move: Move) -> Row | None:
        """Return the record that was copied if it still is to be found."""
        row = next((row for row in self.rows() if row.slot == move.slot and row.is_valid), None)
        return row if row is not None and row.generation == move.generation else None

    # ---- room

    def grant(self, writer: int) -> None:
        self.hear_hello(writer)
        place = min(self.books.free.intersection(self.map.places(self.segment_of(writer))), default=None)
        if place is not None and writer not in self.books.owned and self.has_entry(writer):
            self.take(place)
            self.set_unused(writer, (self.books.unused[writer] or frozenset()) | {place})
            self.write_grant(writer, self.load("num_grants", writer), place)

    def has_entry(self, writer: int) -> bool:
        """Return whether the writer has taken the grant that the next one overwrites."""
        num_untaken = self.load("num_grants", writer) - self.books.taken[writer]
        return self.books.unused[writer] is not None and num_untaken < self.map.num_entries

    def write_grant(self, writer: int, number: int, place: int) -> None:
        self.store(place, "grant", writer, number % self.map.num_entries)
        self.say(number + 1, "num_grants", writer)

    def set_unused(self, writer: int, places: frozenset[int]) -> None:
        self.books = self.books._replace(unused=_with(self.books.unused, writer, places))

    def free_rest(self, segment: int, used: frozenset[int]) -> None:
        """Free the places of a segment in which nothing lies, but for some."""
        for place in set(self.map.places(segment)) - used - self.occupied():
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

    # ---- segments that come and go

    def open(self, writer: int) -> None:
        segment = self.segment_of(writer)
        self.say(writer + 1, "name", segment)
        self.books = self.books._replace(free=self.books.free.union(self.map.places(segment)))

    def segment_of(self, writer: int) -> int:
        """Return the id of a writer's segment: no other has had it."""
        return writer

    def take_over(self, writer: int) -> None:
        is_there = writer not in self.books.owned and self.load("name", writer)
        if is_there and self.is_writer_dead(writer):
            self.set_unused(writer, frozenset())
            self.books = self.books._replace(owned=self.books.owned | {writer})
            self.free_rest(writer, frozenset())

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
        """Check that each place belongs to a record, to the writer or to the frontend, and to one of them."""
        owners = [*self.books.free, *(row.place for row in self.rows())]
        unused = () if segment == MAIN else self.books.unused[segment]
        owners += [place for place in self.map.places(segment) if place not in owners] if unused is None else unused
        for place in self.map.places(segment):
            if owners.count(place) != 1:
                raise Violation(f"I3: place {place} has {owners.count(place)} owners")

    def adopt(self) -> None:
        """Derive the books from the words; show what is kept, and drop all else."""
        rows = list(self.rows())
        self.adopt_room()
        kept = self.kept(rows)
        self.count_copy()  # the former frontend may not have come to it; before the first record of a copy is hidden
        for row in kept:
            if self.load("shown", row.slot) != row.key + 1:
                self.show(row.slot, row.key)
        for slot in set(range(self.map.num_slots)) - {row.slot for row in kept}:
            self.hide(slot)
        for row in rows:
            if row not in kept:
                self.drop(row)

    def kept(self, rows: list[Row]) -> list[Row]:
        """Return what is findable and was not flushed; of a record and its copy the copy."""
        by_key = {
            row.key: row
            for row in sorted(rows, key=lambda row: row.generation)
            if row.is_valid and row.generation > self.floor()
        }
        return list(by_key.values())

    def floor(self) -> int:
        """Return the last generation that was flushed."""
        return self.load("floor")

    def adopt_room(self) -> None:
        """Free what is the frontend's own; the places of writers may be theirs until they have said, or are dead."""
        self.books = self.books._replace(unused=(frozenset(), *(None for _ in self.map.writers)))
        self.free_rest(MAIN, frozenset())


def _with(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*values[:index], value, *values[index + 1 :])
