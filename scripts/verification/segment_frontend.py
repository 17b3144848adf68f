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

from collections.abc import Iterable

from mmcached.shm.ring.self_lease import seal
from mmcached.shm.ring.slot_table import SlotRecord
from mmcached.shm.segment.layout import ALIGNMENT
from scripts.verification.explorer import Violation
from scripts.verification.segment_jobs import (
    BeginMove,
    Collect,
    Died,
    Drop,
    EndMove,
    Evict,
    Flush,
    Grant,
    Job,
    Open,
    PutInMain,
    Receive,
    Remove,
    Settle,
    TakeOver,
)
from scripts.verification.segment_room import Move, Room, Row, with_value
from scripts.verification.segment_words import KEYS, MAIN, MAX_UNITS, pack, unpack
from scripts.verification.self_lease_words import ModelStore

KEPT, REFUSED = 1, 2
"""Answers to a put."""


class Frontend(Room):
    """The frontend while it does one job."""

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
            self.books = self.books._replace(received=with_value(self.books.received, writer, number))
            if life == self.books.life:
                self.hear_hello(writer)
                self.books = self.books._replace(taken=with_value(self.books.taken, writer, taken))
                self.judge(writer, number - 1, place, content)
                return

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

    def is_leased(self, slot: int) -> bool:
        for reader_id in range(self.map.num_readers):
            returned = self.load("returned", reader_id, slot)  # first: see `leases`
            if self.load("taken", reader_id, slot) != returned and self.load("alive", self.map.reader(reader_id)):
                return True
        return False

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

    # ---- segments that come and go

    def open(self, writer: int) -> None:
        segment = self.segment_of(writer)
        self.say(writer + 1, "name", segment)
        self.books = self.books._replace(free=self.books.free.union(self.map.places(segment)))

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
