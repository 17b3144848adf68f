"""Models the processes that put records into a store of several segments, and those that read them.

A writer fills the next place that it was granted, says so, and looks for the answer until it gives up waiting. A reader
looks a key up in shared memory, takes a lease by itself, maps the segment that the slot names, and reads.

A stopped process needs no step of its own: it is one whose turn does not come.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

from mmcached.shm.ring.reader_entry import ReaderEntry
from mmcached.shm.segment.layout import ALIGNMENT
from mmcached.wire.handle import Handle
from scripts.verification.explorer import Violation
from scripts.verification.replay import Machine
from scripts.verification.segment_frontend import KEPT
from scripts.verification.segment_words import KEYS, MAX_GENERATION, MAX_UNITS, NUM_ENTRIES, Map, pack, unpack
from scripts.verification.self_lease_words import RUNNING
from scripts.verification.self_lease_world import Taking

NUM_LOOKS = 2
"""How often a reader looks before it believes that a key has no record."""


class Writing(NamedTuple):
    """How far a writer has come.

    Attributes:
        life: of the frontend to which it is connected.
        num_sent: puts.
        next_grant: the first that it has not used.
        waits: for the answer to the last put.
    """

    life: int
    num_sent: int
    next_grant: int
    waits: bool = False


@dataclass(frozen=True, eq=False)
class Writer:
    """The writer of a segment.

    Attributes:
        keys: of its puts, one after the other.
    """

    the_map: Map
    segment: int
    keys: tuple[int, ...]

    def __call__(self, machine: Machine, state: Writing) -> Hashable:
        RUNNING.machine = machine
        if state.waits:
            self.hear(machine, state)
            return state._replace(waits=False)
        if state.num_sent < len(self.keys) and (after := self.put(machine, state)) is not None:
            return after
        machine.store_release(self.the_map.word("ended", self.the_map.writer(self.segment)), 1)
        return None

    def put(self, machine: Machine, state: Writing) -> Writing | None:
        """Fill a place and send a message; None: nobody listens, or there is no room."""
        life = machine.load(self.the_map.word("alive", 0))
        if not life:
            return None
        epoch = machine.load(self.the_map.word("epoch"))
        place = self.next_place(machine, state.next_grant)
        if place is None:
            return None
        content = (epoch, self.segment, state.num_sent, self.keys[state.num_sent])
        self.fill_and_send(machine, state, life, place, content)
        return Writing(life, state.num_sent + 1, state.next_grant + 1, waits=True)

    def next_place(self, machine: Machine, number: int) -> int | None:
        """Return the place of a grant; None: it has not been given yet."""
        if number >= machine.load(self.the_map.word("num_grants", self.segment)):
            return None
        return machine.load(self.the_map.word("grant", self.segment, number % NUM_ENTRIES))

    def fill_and_send(
        self, machine: Machine, state: Writing, life: int, place: int, content: tuple[int, int, int, int]
    ) -> None:
        if life != state.life:
            self.say_hello(machine, life, state.next_grant)
        self.fill(machine, place, content)
        self.send(machine, state, life, content)

    def say_hello(self, machine: Machine, life: int, next_grant: int) -> None:
        machine.store_release(self.the_map.word("hello", self.segment), pack(life, next_grant))

    def fill(self, machine: Machine, place: int, content: tuple[int, int, int, int]) -> None:
        machine.store(self.the_map.word("bytes", place), pack(*content))

    def send(self, machine: Machine, state: Writing, life: int, content: tuple[int, int, int, int]) -> None:
        word = self.the_map.word("put", self.segment, state.num_sent)
        machine.store_release(word, pack(life, state.next_grant, *content))

    def hear(self, machine: Machine, state: Writing) -> None:
        """Look for the answer once: whoever has waited long enough goes on without."""
        number = state.num_sent - 1
        if machine.load(self.the_map.word("answer", self.segment, number)) == KEPT:
            machine.store_release(self.the_map.word("acknowledged", self.keys[number]), 1)


Mapped = tuple[tuple[int, int], ...]
"""(id, file) of each segment that a reader has mapped."""


class Reading(NamedTuple):
    """How far a reader has come."""

    num_looks: int = 0
    mapped: Mapped = ()


@dataclass(frozen=True, eq=False)
class Reader:
    """A reader.

    Attributes:
        keys: that it looks up, one after the other.
        kept: keys that have a record all the time.
        stays: keys whose record stays once it was acknowledged.
    """

    the_map: Map
    reader_id: int
    keys: tuple[int, ...]
    kept: frozenset[int]
    stays: frozenset[int]

    def __call__(self, machine: Machine, state: Reading) -> Hashable:
        RUNNING.machine = machine
        mapped = self.look(machine, self.keys[state.num_looks], state.mapped)
        if state.num_looks + 1 < len(self.keys):
            return Reading(state.num_looks + 1, mapped)
        machine.store_release(self.the_map.word("ended", self.the_map.reader(self.reader_id)), 1)
        return None

    def look(self, machine: Machine, key: int, mapped: Mapped) -> Mapped:
        """Look a key up, read its record; return what is mapped then."""
        must_find = key in self.kept
        if key in self.stays:
            must_find |= machine.load(self.the_map.word("acknowledged", key)) == 1
        epoch = machine.load(self.the_map.word("flushed"))
        entry, look = self.the_map.reader_entry(self.reader_id), self.the_map.lookup()
        for _ in range(self.num_looks()):
            handle = look.find(KEYS[key])
            if handle is None:
                continue
            (is_taken,) = entry.take([lease := Taking(handle)], look)
            if is_taken:
                self.check_content(machine, handle, key, epoch)
                return self.use(machine, entry, lease, mapped)
            entry.end(lease)
        if must_find:
            raise Violation(f"I9: key {key} has a record, and none is found")
        return mapped

    def num_looks(self) -> int:
        return NUM_LOOKS

    def check_content(self, machine: Machine, handle: Handle, key: int, epoch: int) -> None:
        """Raise Violation if this is not a record that the reader may have found."""
        found_epoch, *_, found_key = unpack(self.content(machine, handle), 4)
        if found_key != key:
            raise Violation(f"I1: generation {handle.generation} is not a record of key {key}")
        if found_epoch < epoch:
            raise Violation(f"I11: generation {handle.generation} is of epoch {found_epoch}, and {epoch} has begun")

    def content(self, machine: Machine, handle: Handle) -> int:
        return machine.load(self.the_map.word("content", min(handle.generation, MAX_GENERATION)))

    def use(self, machine: Machine, entry: ReaderEntry, lease: Taking, mapped: Mapped) -> Mapped:
        """Read under a lease, and give it back."""
        mapped = self.read(machine, lease.handle, mapped)
        entry.end(lease)
        return mapped

    def read(self, machine: Machine, handle: Handle, mapped: Mapped) -> Mapped:
        segment, unit = divmod(handle.offset // ALIGNMENT, MAX_UNITS)
        mapped = self.map_segment(machine, segment, mapped)
        word = self.the_map.word("bytes", MAX_UNITS * dict(mapped)[segment] + unit)
        machine.expect(word, self.content(machine, handle))
        return mapped

    def map_segment(self, machine: Machine, segment: int, mapped: Mapped) -> Mapped:
        """Open the file of a segment by its id, unless that is mapped."""
        if segment in dict(mapped):
            return mapped
        file = machine.load(self.the_map.word("name", segment))
        if not file:
            raise Violation(f"I10: segment {segment} is gone, and a record in it is under lease")
        return (*mapped, (segment, file - 1))
