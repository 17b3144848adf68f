"""Models the processes that put records into a store of several segments, and those that read them.

A writer fills the next place that it was granted, says so, and looks for the answer until it gives up waiting. A reader
looks a key up in shared memory, takes a lease by itself, maps the segment that the slot names, and reads.

A stopped process needs no step of its own: it is one whose turn does not come.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from mmcached.shm.ring.reader_entry import ReaderEntry
from mmcached.shm.segment.layout import ALIGNMENT
from mmcached.wire.handle import Handle
from scripts.verification.explorer import Violation
from scripts.verification.replay import Machine
from scripts.verification.segment_frontend import KEPT
from scripts.verification.segment_words import KEYS, MAX_GENERATION, MAX_UNITS, Map, pack, unpack
from scripts.verification.self_lease_words import RUNNING
from scripts.verification.self_lease_world import Taking


class Writing(NamedTuple):
    """How far a writer has come.

    Attributes:
        life: of the frontend to which it is connected.
        num_sent: puts.
        num_taken: grants.
        unused: places that it has taken, and of which it has not sent a put.
        waits_for: the place of the last put, while it waits for the answer.
    """

    life: int = 1
    num_sent: int = 0
    num_taken: int = 0
    unused: frozenset[int] = frozenset()
    waits_for: int | None = None


@dataclass(frozen=True, eq=False)
class Writer:
    """The writer of a segment.

    Attributes:
        keys: of its puts, one after the other.
        is_awaited: the frontend waits until it has ended.
    """

    the_map: Map
    segment: int
    keys: tuple[int, ...]
    is_awaited: bool

    def __call__(self, machine: Machine, state: Writing) -> Hashable:
        RUNNING.machine = machine
        if state.waits_for is not None:
            return self.hear(machine, state)._replace(waits_for=None)
        if state.num_sent < len(self.keys):
            state, has_sent = self.put(machine, state)
            if has_sent:
                return state
        if self.is_awaited:
            machine.store(self.the_map.word("unused", self.segment), self.the_map.mask(state.unused))
            machine.store_release(self.the_map.word("ended", self.the_map.writer(self.segment)), 1)
        return None

    def put(self, machine: Machine, state: Writing) -> tuple[Writing, bool]:
        """Fill a place and send a message, unless nobody listens or there is no room."""
        life = machine.load(self.the_map.word("alive", 0))
        if not life:
            return state, False
        if life != state.life:
            state = self.say_hello(machine, state, life)
        epoch = machine.load(self.the_map.word("epoch"))
        state = self.take_grants(machine, state)
        if not state.unused:
            return state, False
        place = max(state.unused)  # in another order than they were granted, as threads do that fill side by side
        content = (epoch, self.segment, state.num_sent, self.keys[state.num_sent])
        self.fill(machine, place, content)
        self.send(machine, state, place, content)
        return state._replace(num_sent=state.num_sent + 1, unused=state.unused - {place}, waits_for=place), True

    def say_hello(self, machine: Machine, state: Writing, life: int) -> Writing:
        message = pack(life, state.num_taken, self.the_map.mask(state.unused))
        machine.store_release(self.the_map.word("hello", self.segment), message)
        return state._replace(life=life)

    def take_grants(self, machine: Machine, state: Writing) -> Writing:
        count = machine.load(self.the_map.word("num_grants", self.segment))
        places = {self.granted_place(machine, number) for number in range(state.num_taken, count)}
        return state._replace(num_taken=count, unused=state.unused | places)

    def granted_place(self, machine: Machine, number: int) -> int:
        return machine.load(self.the_map.word("grant", self.segment, number % self.the_map.num_entries))

    def fill(self, machine: Machine, place: int, content: tuple[int, int, int, int]) -> None:
        machine.store(self.the_map.word("bytes", MAX_UNITS * self.segment + place % MAX_UNITS), pack(*content))

    def send(self, machine: Machine, state: Writing, place: int, content: tuple[int, int, int, int]) -> None:
        word = self.the_map.word("put", self.segment, state.num_sent)
        machine.store_release(word, pack(state.life, state.num_taken, place, *content))

    def hear(self, machine: Machine, state: Writing) -> Writing:
        """Look for the answer once: whoever has waited long enough goes on without."""
        number = state.num_sent - 1
        if machine.load(self.the_map.word("answer", self.segment, number)) == KEPT:
            machine.store_release(self.the_map.word("acknowledged", self.keys[number]), 1)
        return state


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
        is_awaited: the frontend waits until it has ended.
        max_looks: a look is repeated when a copy was published meanwhile, or what was found has gone before the lease.
    """

    the_map: Map
    reader_id: int
    keys: tuple[int, ...]
    kept: frozenset[int]
    stays: frozenset[int]
    is_awaited: bool
    max_looks: ClassVar[int] = 3

    def __call__(self, machine: Machine, state: Reading) -> Hashable:
        RUNNING.machine = machine
        mapped = self.look(machine, self.keys[state.num_looks], state.mapped)
        if state.num_looks + 1 < len(self.keys):
            return Reading(state.num_looks + 1, mapped)
        if self.is_awaited:
            machine.store_release(self.the_map.word("ended", self.the_map.reader(self.reader_id)), 1)
        return None

    def look(self, machine: Machine, key: int, mapped: Mapped) -> Mapped:
        """Look a key up, read its record; return what is mapped then."""
        must_find = key in self.kept
        if key in self.stays:
            must_find |= machine.load(self.the_map.word("acknowledged", key)) == 1
        epoch = machine.load(self.the_map.word("flushed"))
        entry, look = self.the_map.reader_entry(self.reader_id), self.the_map.lookup()
        for _ in range(self.max_looks):
            num_copies = machine.load(self.the_map.word("copies"))
            handle = look.find(KEYS[key])
            if handle is None and self.is_sure(machine, num_copies):
                break
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

    def is_sure(self, machine: Machine, num_copies: int) -> bool:
        """Return whether a key that was not found has no record."""
        return machine.load(self.the_map.word("copies")) == num_copies

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
