"""Models the processes that put records into a store of several segments, and those that read them.

A writer lays a record into a place that it was granted, says so, and looks for the answer until it gives up waiting; a
later look may still find it. A reader looks a key up in shared memory, takes a lease by itself, maps the segment that
the slot names, and reads.

A stopped process needs no step of its own: it is one whose turn does not come. A writer does not notice that its
connection is closed before an answer tells it: so it goes on with the nursery that it has, whoever the frontend is.
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
from scripts.verification.segment_frontend import ASK, KEPT, PUT, REPLACE
from scripts.verification.segment_words import KEYS, MAIN, MAX_GENERATION, MAX_UNITS, Map, pack, unpack
from scripts.verification.self_lease_words import RUNNING
from scripts.verification.self_lease_world import Taking


class Writing(NamedTuple):
    """How far a writer has come.

    Attributes:
        sent: the key of each put, None for a message that asks for room.
        num_heard: answers.
        nursery, file: its newest nursery, and the file that it has mapped; 0: none.
        places: of that nursery, which it owns.
    """

    sent: tuple[int | None, ...] = ()
    num_heard: int = 0
    nursery: int = 0
    file: int = 0
    places: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False)
class Writer:
    """A writer, which has one nursery at a time.

    Attributes:
        keys: of its puts, one after the other.
        replaces: they go in the place of the records that their keys have.
        is_awaited: the frontend waits until it has ended.
    """

    the_map: Map
    number: int
    keys: tuple[int, ...]
    replaces: bool
    is_awaited: bool

    def __call__(self, machine: Machine, state: Writing) -> Hashable:
        RUNNING.machine = machine
        state = self.hear(machine, state)
        keys = self.keys[len([key for key in state.sent if key is not None]) :]
        if keys and state.places and self.can_send(state):
            return self.put(machine, state, keys[0])
        if keys and state.sent[-1:] != (None,) and self.can_send(state):
            return self.send(machine, state, pack(ASK, 0, 0, 0, 0, 0), None)
        owned = pack(state.nursery, state.num_heard, self.the_map.mask(state.places))
        machine.store(self.the_map.word("owned", self.number), owned)
        if self.is_awaited:
            machine.store_release(self.the_map.word("ended", self.number), 1)
        return None

    def can_send(self, state: Writing) -> bool:
        return len(state.sent) < self.the_map.num_messages

    # ---- puts

    def put(self, machine: Machine, state: Writing, key: int) -> Writing:
        """Fill a place, and say so; from then on it is the frontend's."""
        epoch = machine.load(self.the_map.word("epoch"))
        place = max(state.places)  # in another order than they were granted, as threads do that fill side by side
        number = len(state.sent)
        self.fill(machine, state, place, self.content(epoch, number, key))
        kind = REPLACE if self.replaces else PUT
        state = self.send(machine, state, pack(kind, place, epoch, self.number, number, key), key)
        return state._replace(places=self.left(state.places, place))

    def content(self, epoch: int, number: int, key: int) -> int:
        return pack(epoch, self.number, number, key)

    def left(self, places: frozenset[int], place: int) -> frozenset[int]:
        """Return which places it owns after a put."""
        return places - {place}

    def fill(self, machine: Machine, state: Writing, place: int, content: int) -> None:
        machine.store(self.the_map.word("bytes", MAX_UNITS * state.file + place % MAX_UNITS), content)

    def send(self, machine: Machine, state: Writing, message: int, key: int | None) -> Writing:
        machine.store_release(self.the_map.word("message", self.number, len(state.sent)), message)
        return state._replace(sent=(*state.sent, key))

    # ---- answers

    def hear(self, machine: Machine, state: Writing) -> Writing:
        """Take the answers that have come."""
        for number in range(state.num_heard, len(state.sent)):
            answer = machine.load(self.the_map.word("answer", self.number, number))
            if not answer:
                break
            verdict, nursery, mask = unpack(answer, 3)
            if verdict == KEPT and (key := state.sent[number]) is not None:
                machine.store_release(self.the_map.word("acknowledged", key), 1)
            state = self.take_grants(machine, state._replace(num_heard=number + 1), nursery, mask)
        return state

    def take_grants(self, machine: Machine, state: Writing, nursery: int, mask: int) -> Writing:
        """Take the places of an answer if its nursery is the newest; forget an older one."""
        if nursery > state.nursery:
            file = machine.load(self.the_map.word("name", nursery))
            places = self.the_map.places_of(nursery, mask) if file else frozenset[int]()
            return state._replace(nursery=nursery, file=file, places=places)
        if nursery == state.nursery and state.file:
            return state._replace(places=state.places | self.the_map.places_of(nursery, mask))
        return state if nursery else state._replace(places=frozenset())


Mapped = tuple[tuple[int, int], ...]
"""(id, file) of each nursery that a reader has mapped."""


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
        max_takes: so often a lease is tried, as what was found may have gone before it was taken.
    """

    the_map: Map
    reader_id: int
    keys: tuple[int, ...]
    kept: frozenset[int]
    stays: frozenset[int]
    is_awaited: bool
    max_takes: ClassVar[int] = 2

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
        for _ in range(self.max_takes):
            if (handle := look.find(KEYS[key])) is None:
                break
            (is_taken,) = entry.take_leases([lease := Taking(handle)], look)
            if is_taken:
                self.check_content(machine, handle, key, epoch)
                return self.use(machine, entry, lease, mapped)
            entry.end(lease)
        if must_find:
            raise Violation(f"I9: key {key} has a record, and none is found")
        return mapped

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
        mapped = self.map_nursery(machine, segment, mapped)
        word = self.the_map.word("bytes", MAX_UNITS * dict(mapped).get(segment, MAIN) + unit)
        machine.expect(word, self.content(machine, handle))
        return mapped

    def map_nursery(self, machine: Machine, segment: int, mapped: Mapped) -> Mapped:
        """Open the file of a nursery by its id, unless that is mapped."""
        if segment == MAIN or segment in dict(mapped):
            return mapped
        file = machine.load(self.the_map.word("name", segment))
        if not file:
            raise Violation(f"I10: nursery {segment} is gone, and a record in it is under lease")
        return (*mapped, (segment, file))
