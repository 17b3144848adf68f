"""Says to whom each place of a modelled store belongs: to a record, to the frontend, or to the writer of its nursery.

    free ──granted in an answer──> the writer's ──a put has come──> a record's ──retired, sealed, erased──> free

A nursery is *open* as long as the connection of its writer; from then on it is *drained*: nothing is granted in it and
no put of it is accepted. Its records stay; what is free in it goes back to the kernel, and with its last record the
file goes. The frontend keeps who owns which place in its `Books`, and a successor need not know: to it every nursery is
drained.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mmcached.shm.ring.slot_table import IS_SEALED
from mmcached.shm.segment.layout import ALIGNMENT
from scripts.verification.replay import Machine
from scripts.verification.segment_words import INDEX_WORDS, KEYS, MAIN, MAX_UNITS, Map


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
        nurseries: of each writer the id of its open nursery, or 0.
        free: places that the frontend may fill, or grant.
        granted: places that their writers own.
    """

    nurseries: tuple[int, ...]
    free: frozenset[int] = frozenset()
    granted: frozenset[int] = frozenset()
    move: Move | None = None


class Room:
    """Places, slots and index while the frontend does one job; `books` is what it remembers until the next."""

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

    def free_slot(self) -> int | None:
        taken = {row.slot for row in self.rows()}
        return next((slot for slot in range(self.map.num_slots) if slot not in taken), None)

    # ---- the index, as `KeyIndexWriter` writes it

    def shown(self, key: int) -> list[int]:
        """Return the words of a key, each a slot + 1; 0 ends them."""
        words = [self.load("index", key, each) for each in range(INDEX_WORDS)]
        return words[: words.index(0)] if 0 in words else words

    def show(self, key: int, slot: int) -> None:
        self.store(slot + 1, "index", key, len(self.shown(key)))

    def show_instead(self, key: int, slot: int, new_slot: int) -> None:
        """Show a record at another slot, with one store; it is valid there."""
        self.say(new_slot + 1, "index", key, self.shown(key).index(slot + 1))

    def hide(self, key: int, slot: int) -> None:
        """Hide a record; a word behind its own is copied before it is freed."""
        words = self.shown(key)
        if slot + 1 in words:
            words.remove(slot + 1)
            for each, word in enumerate([*words, 0]):
                if self.load("index", key, each) != word:
                    self.store(word, "index", key, each)

    # ---- places

    def own(self, places: Iterable[int], *, granted: bool) -> None:
        """Note that places are a writer's, or free."""
        free, owned = self.books.free, self.books.granted
        if granted:
            self.books = self.books._replace(free=free.difference(places), granted=owned.union(places))
        else:
            self.books = self.books._replace(free=free.union(places), granted=owned.difference(places))

    def occupy(self, place: int) -> None:
        """Note that a record gets a place."""
        free, granted = self.books.free, self.books.granted
        self.books = self.books._replace(free=free - {place}, granted=granted - {place})

    def main_place(self) -> int | None:
        return min(self.books.free.intersection(self.map.places(MAIN)), default=None)

    def release(self, place: int) -> None:
        """Note that no record has a place any more."""
        segment = place // MAX_UNITS
        if segment == MAIN or segment in self.books.nurseries:
            self.own([place], granted=False)
        else:
            self.empty(segment)

    # ---- nurseries

    def open(self, writer: int) -> None:
        """Make a nursery, under an id that none has had."""
        nursery, file = self.next_id(), self.load("files") + 1
        if nursery in self.map.nurseries and file in self.map.nurseries:
            self.store(file, "files")
            self.say(file, "name", nursery)
            self.set_nursery(writer, nursery)
            self.own(self.map.places(nursery), granted=False)

    def next_id(self) -> int:
        """Return the id of the next nursery; it is taken before there is a file."""
        nursery = self.load("last nursery") + 1
        self.store(nursery, "last nursery")
        return nursery

    def set_nursery(self, writer: int, nursery: int) -> None:
        nurseries = list(self.books.nurseries)
        nurseries[writer - 1] = nursery
        self.books = self.books._replace(nurseries=tuple(nurseries))

    def drain(self, writer: int) -> None:
        """Let nothing more come into a writer's nursery: its connection is closed."""
        nursery = self.books.nurseries[writer - 1]
        if nursery:
            self.set_nursery(writer, 0)
            places = self.map.places(nursery)
            free, granted = self.books.free.difference(places), self.books.granted.difference(places)
            self.books = self.books._replace(free=free, granted=granted)
            self.empty(nursery)

    def empty(self, nursery: int) -> None:
        """Give the kernel back what is free in a drained nursery; remove it if that is all."""
        file, named = self.load("name", nursery), self.named_places(nursery)
        if file and not named:
            self.say(0, "name", nursery)
        for place in sorted(set(self.map.places(nursery)) - named if file else ()):
            self.store(0, "bytes", MAX_UNITS * file + place % MAX_UNITS)

    def named_places(self, nursery: int) -> set[int]:
        """Return the places of a nursery that slots in any state name."""
        return self.occupied().intersection(self.map.places(nursery))
