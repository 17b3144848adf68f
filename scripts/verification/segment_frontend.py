"""Models the frontend of a store of several segments: the only writer of index, slot table, names and answers.

    receive   a message: open a nursery, or judge a put's place and publish it there; answer, with grants
    evict     retire, seal, erase; only then its place is free
    move      copy a record into the main segment, and put the copy in its place
    drain     a nursery whose connection is closed; remove it when no slot names a place in it
    flush     floor, every record, epoch, answer
    adopt     begin with what a dead frontend has left in shared memory; every nursery is drained then

What it keeps for itself are its `Books`; a successor begins with none.
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
    Drain,
    Drop,
    EndMove,
    Evict,
    Flush,
    Job,
    PutInMain,
    Receive,
    Settle,
)
from scripts.verification.segment_room import Move, Room, Row
from scripts.verification.segment_words import KEYS, MAIN, pack, unpack
from scripts.verification.self_lease_words import ModelStore

ASK, PUT, REPLACE = 1, 2, 3
"""Messages: for room; of a record that was laid into its place; and of one that goes in the place of its key's.
An answer brings grants in any case."""
KEPT, REFUSED = 1, 2
"""Answers."""


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
            case BeginMove(key):
                self.begin_move(key)
            case EndMove():
                self.end_move()
            case Drain(writer):
                self.drain(writer)
            case Flush():
                self.flush()
            case Died(role):
                self.machine.wait(self.map.word("alive", role), 0)
            case Settle(roles):
                self.settle(roles)

    # ---- messages

    def receive(self, writer: int) -> None:
        """Take the next message, also one that was sent to a frontend that is dead."""
        for number in range(self.map.num_messages):
            if self.load("answer", writer, number):
                continue
            if message := self.load("message", writer, number):
                kind, place, *content = unpack(message, 6)
                is_kept = self.hear(writer) if kind == ASK else self.judge(writer, place, content, kind == REPLACE)
                self.answer(writer, number, KEPT if is_kept else REFUSED)
            return

    def hear(self, writer: int) -> bool:
        """Take a message that names no place."""
        if not self.books.nurseries[writer - 1]:
            self.open(writer)
        return False

    def judge(self, writer: int, place: int, content: list[int], replaces: bool) -> bool:
        """Publish a put, if its place is its writer's; return whether its key has a record now."""
        epoch, _, _, key = content
        if not self.is_of(writer, place):
            return False
        former, slot = self.find(key), self.free_slot()
        if slot is None or not self.is_current(epoch) or (former is not None and not replaces):
            self.take_back(place)
            return former is not None
        self.occupy(place)
        self.put(slot, place, key, pack(*content), former)
        return True

    def is_of(self, writer: int, place: int) -> bool:
        """Return whether a place was granted to a writer, in its open nursery, and has not come back."""
        return place in self.books.granted.intersection(self.map.places(self.books.nurseries[writer - 1]))

    def take_back(self, place: int) -> None:
        """Let the place of a refused put be granted again."""
        self.own([place], granted=False)

    def is_current(self, epoch: int) -> bool:
        """Return whether what was computed in an epoch may be kept."""
        return epoch == self.load("epoch")

    def answer(self, writer: int, number: int, verdict: int) -> None:
        """Answer a message, and grant all that is free in the writer's nursery."""
        nursery = self.books.nurseries[writer - 1]
        places = self.books.free.intersection(self.map.places(nursery)) if nursery else frozenset()
        self.own(places, granted=True)
        self.say(pack(verdict, nursery, self.map.mask(places)), "answer", writer, number)

    # ---- records

    def put_in_main(self, key: int) -> None:
        place, slot = self.main_place(), self.free_slot()
        if place is None or slot is None or self.find(key) is not None:
            return
        self.occupy(place)
        content = pack(self.load("epoch"), 0, 0, key)
        self.store(content, "bytes", place)
        self.put(slot, place, key, content, None)

    def put(self, slot: int, place: int, key: int, content: int, former: Row | None) -> None:
        """Show what lies at a place, in the place of the record that its key has."""
        self.publish(slot, place, key, content)
        if former is None:
            self.show(key, slot)
        else:
            self.show_instead(key, former.slot, slot)
            self.drop(former)

    def publish(self, slot: int, place: int, key: int, content: int) -> None:
        """Make valid what lies at a place; the index does not show it yet."""
        generation = self.load("last generation") + 1
        self.store(generation, "last generation")
        self.store(content, "content", generation)
        self.slots.fill(slot, SlotRecord(generation, ALIGNMENT * place, ALIGNMENT, 0, KEYS[key]))
        self.slots.publish(slot, generation)

    def evict(self, key: int) -> None:
        row = self.find(key)
        if row is not None:
            self.slots.retire(row.slot)
            if not self.vacate(row):
                self.slots.restore(row.slot)

    def drop(self, row: Row | None) -> None:
        if row is not None:
            self.hide(row.key, row.slot)
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
            self.hide(row.key, row.slot)
            self.release(row.place)
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
        row, place = self.find(key), self.main_place()
        if row is not None and place is not None and row.place not in self.map.places(MAIN):
            self.occupy(place)
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
            self.release(move.place)
        else:
            self.put(slot, move.place, row.key, self.load("content", row.generation), row)
        self.books = self.books._replace(move=None)

    def moved_row(self, move: Move) -> Row | None:
        """Return the record that was copied if it still is to be found."""
        row = next((row for row in self.rows() if row.slot == move.slot and row.is_valid), None)
        return row if row is not None and row.generation == move.generation else None

    # ---- the end, and the beginning

    def settle(self, roles: Iterable[int]) -> None:
        for role in roles:
            self.machine.wait(self.map.word("ended", role), 1)
        for writer in self.map.writers:
            for _ in range(self.map.num_messages):
                self.receive(writer)
        self.collect()
        rows = list(self.rows())
        if not all(row.is_valid for row in rows):
            raise Violation(f"I7: a slot stays retired: {rows}")
        self.check_room()
        for writer in self.map.writers:
            if writer in roles:
                self.check_grants(writer)

    def check_room(self) -> None:
        """Check that each place that can be used belongs to a record, to its writer or to the frontend."""
        owners = [*self.books.free, *self.books.granted, *(row.place for row in self.rows())]
        for segment in (MAIN, *self.map.nurseries):
            is_used = segment == MAIN or segment in self.books.nurseries
            for place in self.map.places(segment):
                if is_used and owners.count(place) != 1:
                    raise Violation(f"I3: place {place} has {owners.count(place)} owners")
            if not is_used and self.load("name", segment) and not self.named_places(segment):
                raise Violation(f"I3: nursery {segment} is drained and empty, and its file is there")

    def check_grants(self, writer: int) -> None:
        """Check that a writer that has ended owns, or is sent, all that was granted in its open nursery."""
        nursery = self.books.nurseries[writer - 1]
        known, num_heard, mask = unpack(self.load("owned", writer), 3)
        places = self.map.places_of(nursery, mask) if known == nursery else frozenset()
        for number in range(num_heard, self.map.num_messages):
            _, granted_in, mask = unpack(self.load("answer", writer, number), 3)
            if granted_in == nursery:
                places |= self.map.places_of(nursery, mask)
        if nursery and places != self.books.granted.intersection(self.map.places(nursery)):
            raise Violation(f"I3: writer {writer} owns {sorted(places)} of nursery {nursery}: {self.books}")

    def adopt(self) -> None:
        """Derive the books from the words; show what is kept, drop all else, and drain every nursery."""
        rows = list(self.rows())
        kept = self.kept(rows)
        for row in kept:
            if row.slot + 1 not in self.shown(row.key):
                self.show(row.key, row.slot)
        for key in range(len(KEYS)):
            self.hide_all_but(key, [row.slot for row in kept if row.key == key])
        for row in rows:
            if row not in kept:
                self.slots.retire(row.slot)
        for row in rows:
            if row not in kept:
                self.vacate(row)
        self.own(set(self.map.places(MAIN)) - self.occupied(), granted=False)
        for nursery in self.map.nurseries:
            self.empty(nursery)

    def hide_all_but(self, key: int, slots: list[int]) -> None:
        """Let the index lead a key nowhere else, and once."""
        words = self.shown(key)
        for word in words:
            if word - 1 not in slots or self.shown(key).count(word) > 1:
                self.hide(key, word - 1)

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
