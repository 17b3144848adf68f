"""Says to whom each place of a modelled store belongs: to a record, to the frontend, or to the writer of its segment.

    free ──grant──> the writer's ──a put has come──> a record's ──retired, sealed, erased──> free

A place that was granted stays the writer's until a put of it has come, whatever becomes of the writer's connection. A
writer may send its puts in any order; what it has sent is not its own any more, answered or not.

The frontend keeps this for itself, and a successor does not know it: before a writer has said in its first message what
it has not used, every place of its segment in which nothing lies may be its own. A dead writer needs none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from mmcached.shm.ring.slot_table import IS_SEALED
from mmcached.shm.segment.layout import ALIGNMENT
from scripts.verification.explorer import Violation
from scripts.verification.replay import Machine
from scripts.verification.segment_words import KEYS, MAIN, MAX_UNITS, Map, unpack

T = TypeVar("T")


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


class Room:
    """The places of all segments, while the frontend does one job; `books` is what it remembers until the next."""

    def __init__(self, machine: Machine, the_map: Map, books: Books) -> None:
        self.machine = machine
        self.map = the_map
        self.books = books
        self.slots = the_map.slot_table()

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

    # ---- places

    def segment_of(self, writer: int) -> int:
        """Return the id of a writer's segment: no other has had it."""
        return writer

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
        self.books = self.books._replace(unused=with_value(self.books.unused, writer, places))

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

    def is_of(self, writer: int, place: int) -> bool:
        """Return whether a place was granted to a writer and has not come back."""
        return place in (self.books.unused[writer] or frozenset())

    def hear_hello(self, writer: int) -> None:
        """Learn what a writer has not used, if its first message since an adoption has come."""
        if self.books.unused[writer] is not None or writer in self.books.owned:
            return
        life, taken, mask = unpack(self.load("hello", writer), 3)
        if life == self.books.life:
            untaken = range(taken, self.load("num_grants", writer))
            granted = {self.load("grant", writer, number % self.map.num_entries) for number in untaken}
            unused = self.map.places_of(writer, mask) | granted
            self.books = self.books._replace(taken=with_value(self.books.taken, writer, taken))
            self.set_unused(writer, unused)
            self.free_rest(writer, unused)

    def adopt_room(self) -> None:
        """Free what is the frontend's own; the places of writers may be theirs until they have said, or are dead."""
        self.books = self.books._replace(unused=(frozenset(), *(None for _ in self.map.writers)))
        self.free_rest(MAIN, frozenset())

    def check_room(self, segment: int) -> None:
        """Check that each place belongs to a record, to the writer or to the frontend, and to one of them."""
        owners = [*self.books.free, *(row.place for row in self.rows())]
        unused = () if segment == MAIN else self.books.unused[segment]
        owners += [place for place in self.map.places(segment) if place not in owners] if unused is None else unused
        for place in self.map.places(segment):
            if owners.count(place) != 1:
                raise Violation(f"I3: place {place} has {owners.count(place)} owners")


def with_value(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*values[:index], value, *values[index + 1 :])
