"""Explores leases that readers take by themselves: the product's ring writer and reader entries on weak memory.

    role 0: the writer      puts records, judges deaths, attaches        } real code, see `self_lease_words`
    role 1 …: readers       find, take, read both words, give back       }

What must hold:

    I1  a reader under a lease reads the payload of the record that it has found, whole
    I3  at rest all has come back that an attached reader has taken
    I8  what a reader has under lease, another can take too
    I7  at rest a valid slot's payload is whole, and a living writer has left none retired, unless it discards
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from mmcached.shm.ring.reader_entry import ReaderEntry
from mmcached.shm.ring.slot_table import FIRST_KEY, GENERATION, read_slot
from mmcached.shm.segment.layout import ALIGNMENT
from mmcached.wire.errors import CacheFull
from mmcached.wire.handle import Handle
from scripts.verification import scenario, self_lease_words
from scripts.verification.explorer import Violation
from scripts.verification.replay import Machine, Runs
from scripts.verification.self_lease_words import KEYS, PAYLOAD_WORDS, RUNNING, Map, PlainMemory
from scripts.verification.weak_memory import Order, Role, Scene, World


@dataclass(slots=True)
class Taking:
    """A lease that a reader takes."""

    handle: Handle
    is_counted: bool = False
    num_returned: int = 0


@dataclass(frozen=True, slots=True)
class Put:
    """Evict what is in the way and put a record of a key."""

    key: int
    num_units: int = 1


@dataclass(frozen=True, slots=True)
class Poll:
    """Judge who has died."""


@dataclass(frozen=True, slots=True)
class Attach:
    """Accept the last Hello of an entry, if one has come."""

    reader_id: int = 0


@dataclass(frozen=True, slots=True)
class Discard:
    """Forget the last record that was put."""


@dataclass(frozen=True, slots=True)
class Clear:
    """Forget all records."""


ONE_SLOT = Map(1, 1)
Job = Put | Poll | Attach | Discard | Clear


@dataclass(frozen=True)
class Setting:
    """Says what a world is, but for its order of memory.

    Attributes:
        the_map: its words; at the start each slot holds a record of one unit, of key 0.
        script: what the writer does.
        rounds: look-ups of each thread of each reader.
        num_lives: of the first reader; the others have one.
        successor: what a second life of the writer does, after it has adopted the ring; empty: there is none.
        num_kills, mortal: kills that may happen, and the roles that they may hit; 0 is the writer.
        reader: what the readers do, if not as usual.
        is_scribbled: a stray store of the first reader has hit its count of slot 0.
        patches: (module, name, replacement): what a mutant has in the product's place.
    """

    the_map: Map = ONE_SLOT
    script: tuple[Job, ...] = (Put(1), Put(0))
    rounds: int = 1
    num_keys: int = 1
    num_threads: int = 1
    num_lives: int = 1
    successor: tuple[Job, ...] = ()
    num_kills: int = 0
    mortal: tuple[int, ...] = ()
    is_attached: bool = True
    is_scribbled: bool = False
    reader: type[Reader] | None = None
    patches: tuple[tuple[Any, str, Any], ...] = ()

    def modelled_words(self) -> contextlib.AbstractContextManager[None]:
        return self_lease_words.modelled_words(self.the_map)

    def start(self, order: Order) -> World:
        """Return where an exploration begins."""
        the_map = self.the_map
        memory = PlainMemory(the_map.size())
        writer = Writer(self)
        writer.begin(memory)
        scripts = [(writer, self.script), *([(Successor(self), self.successor)] if self.successor else [])]
        roles = [Role("the writer", tuple((each,) for each in scripts), is_mortal=0 in self.mortal)]
        for reader_id in range(the_map.num_readers):
            program = (self.reader or Reader)(self, reader_id)
            num_lives = self.num_lives if reader_id == 0 else 1
            lives = tuple(
                tuple((program, (life, self.rounds, life == 1 and self.is_attached)) for _ in range(self.num_threads))
                for life in range(1, num_lives + 1)
            )
            is_mortal = 1 + reader_id in self.mortal
            roles.append(
                Role(
                    f"reader {reader_id}",
                    lives,
                    (the_map.returned_lock(reader_id), the_map.taken_lock(reader_id)),
                    is_mortal=is_mortal,
                )
            )
        scene = Scene(
            order=order,
            roles=tuple(roles),
            word_names=tuple(the_map.names()),
            owners=_owners(self),
            alive=tuple(the_map.alive(role) for role in range(len(roles))),
            check_rest=_check_rest(self),
            runs=Runs(reads_late=order is Order.WEAK),
        )
        return scene.start(memory.words, self.num_kills)


Scenario = scenario.Scenario[Setting]


def stamp(generation: int, key: int) -> int:
    """Return what each word of a payload holds."""
    return 10 * generation + key


def incarnation_of(reader_id: int, life: int) -> int:
    return 100 * (reader_id + 1) + life


@dataclass(frozen=True, eq=False)
class Writer:
    """Runs the script of the writer, its carry."""

    setting: Setting

    def __call__(self, machine: Machine, script: tuple[Job, ...]) -> None:
        ring, handles = self.begin(PlainMemory(self.setting.the_map.size()))
        RUNNING.machine = machine
        self.play(machine, script, ring, handles)

    def play(self, machine: Machine, script: tuple[Job, ...], ring: Any, handles: list[Handle]) -> None:
        for job in script:
            match job:
                case Put(key, num_units):
                    handles += self.put(ring, key, num_units)
                case Discard():
                    ring.records.discard(handles.pop())
                case Clear():
                    ring.records.clear()
                case Poll():
                    ring.readers.poll_deaths()
                case Attach(reader_id):
                    if incarnation := machine.load(self.setting.the_map.hello(reader_id)):
                        ring.readers.attach(reader_id, incarnation)

    def begin(self, memory: PlainMemory) -> tuple[Any, list[Handle]]:
        """Set the scene; return the ring as it then is, and what it holds."""
        the_map = self.setting.the_map
        RUNNING.machine = memory
        ring = the_map.ring_writer()
        for reader_id in range(the_map.num_readers):
            memory.words[the_map.alive(1 + reader_id)] = 1
            memory.words[the_map.incarnation(reader_id)] = incarnation_of(reader_id, 1)
            if self.setting.is_attached:
                ring.readers.attach(reader_id, incarnation_of(reader_id, 1))
        handles = [handle for _ in range(the_map.num_slots) for handle in Writer.put(self, ring, 0)]
        if self.setting.is_scribbled:
            memory.words[the_map.returned(0, 0)] += 5
        return ring, handles

    def put(self, ring: Any, key: int, num_units: int = 1) -> list[Handle]:
        """Put a record; return nothing if there is no room for it now."""
        try:
            claim = ring.claim(ALIGNMENT * num_units)
        except CacheFull:
            return []
        self.fill(claim, key)
        return [ring.commit(claim, KEYS[key])]

    def fill(self, claim: Any, key: int) -> None:
        for word in _payload_words(self.setting.the_map, claim.offset, claim.nbytes):
            RUNNING.machine.store(word, stamp(claim.generation, key))


class Successor(Writer):
    """Adopts the ring first."""

    def __call__(self, machine: Machine, script: tuple[Job, ...]) -> None:
        RUNNING.machine = machine
        ring = self.setting.the_map.ring_writer(is_adopted=True)
        self.play(machine, script, ring, [handle for handle, _, _ in ring.records])


@dataclass(frozen=True, eq=False)
class Reader:
    """Runs one thread of a reader; its carry: life, rounds that are left, whether the entry is taken."""

    setting: Setting
    reader_id: int

    def __call__(self, machine: Machine, carry: tuple[int, int, bool]) -> Hashable:
        RUNNING.machine = machine
        life, rounds, has_entry = carry
        the_map = self.setting.the_map
        if not has_entry:
            self.end_former_life(machine)
            machine.store_release(the_map.incarnation(self.reader_id), incarnation_of(self.reader_id, life))
            machine.store_release(the_map.hello(self.reader_id), incarnation_of(self.reader_id, life))
            self.wait_until_attached(machine, incarnation_of(self.reader_id, life))
        self.look_once(machine, incarnation_of(self.reader_id, life))
        return (life, rounds - 1, True) if rounds > 1 else None

    def end_former_life(self, machine: Machine) -> None:
        """Give back what a former life had, as `ReaderEntry.attach` does."""
        for slot in range(self.setting.the_map.num_slots):
            returned = self.setting.the_map.returned(self.reader_id, slot)
            machine.store(returned, machine.load(self.setting.the_map.taken(self.reader_id, slot)))

    def wait_until_attached(self, machine: Machine, incarnation: int) -> None:
        """Wait for the answer to the Hello."""
        machine.wait(self.setting.the_map.attached(self.reader_id), incarnation)

    def look_once(self, machine: Machine, incarnation: int) -> None:
        entry = self.setting.the_map.reader_entry(self.reader_id, incarnation)
        look = self.setting.the_map.lookup()
        key = machine.choose(self.setting.num_keys) if self.setting.num_keys > 1 else 0
        handle = look.find(KEYS[key])
        if handle is None:
            return
        with self.alone(machine, self.setting.the_map.taken_lock(self.reader_id)):
            (is_taken,) = entry.take_leases([lease := Taking(handle)], look)
        self.use(machine, entry, lease, key if is_taken else None)

    def use(self, machine: Machine, entry: ReaderEntry, lease: Taking, key: int | None) -> None:
        """Read, if there is something to be read, and give the lease back."""
        if key is not None:
            self.read(machine, lease.handle, key)
        self.give_back(machine, entry, lease)

    def give_back(self, machine: Machine, entry: ReaderEntry, lease: Taking) -> None:
        with self.alone(machine, self.setting.the_map.returned_lock(self.reader_id)):
            entry.end(lease)

    def read(self, machine: Machine, handle: Handle, key: int) -> None:
        for word in _payload_words(self.setting.the_map, handle.offset, handle.nbytes):
            machine.expect(word, stamp(handle.generation, key))

    def alone(self, machine: Machine, lock: int) -> contextlib.AbstractContextManager[None]:
        """Return what keeps the other threads from counting the same."""
        return machine.locked(lock) if self.setting.num_threads > 1 else contextlib.nullcontext()


def _owners(setting: Setting) -> tuple[tuple[int, int] | None, ...]:
    the_map = setting.the_map
    owners: list[tuple[int, int] | None] = [None] * the_map.size()
    owners[: the_map.returned(0, 0)] = [(0, 0)] * the_map.returned(0, 0)
    if setting.num_threads == 1:
        for reader_id in range(the_map.num_readers):
            first, last = the_map.returned(reader_id, 0), the_map.returned(reader_id + 1, 0)
            owners[first:last] = [(1 + reader_id, 0)] * (last - first)
    return tuple(owners)


def _check_rest(setting: Setting) -> Callable[[World], None]:
    the_map = setting.the_map

    def check(world: World) -> None:
        words, writer = world.memory.words, world.processes[0]
        for reader_id in range(the_map.num_readers):
            incarnation = incarnation_of(reader_id, words[the_map.alive(1 + reader_id)])
            is_scribbled = setting.is_scribbled and reader_id == 0
            if words[the_map.attached(reader_id)] != incarnation or is_scribbled:
                continue
            for slot in range(the_map.num_slots):
                if words[the_map.taken(reader_id, slot)] != words[the_map.returned(reader_id, slot)]:
                    raise Violation(f"I3: reader {reader_id} has not given back slot {slot}")
        for slot in range(the_map.num_slots):
            mark = words[the_map.slot(slot, GENERATION)]
            if mark & 1:
                _check_payload(the_map, words, slot)
            elif mark and writer.life == 1 and writer.is_alive and not {Discard(), Clear()} & set(setting.script):
                raise Violation(f"I7: slot {slot} stays retired")

    return check


def _check_payload(the_map: Map, words: tuple[int, ...], slot: int) -> None:
    RUNNING.machine = memory = PlainMemory(0)
    memory.words = list(words)
    handle, _ = read_slot(the_map.tables().slots, slot)
    key = [digest for digest, _ in KEYS].index(words[the_map.slot(slot, FIRST_KEY)])
    found = [words[word] for word in _payload_words(the_map, handle.offset, handle.nbytes)]
    if set(found) != {stamp(handle.generation, key)}:
        raise Violation(f"I7: slot {slot} is valid as generation {handle.generation}, and its payload is {found}")


def _payload_words(the_map: Map, offset: int, nbytes: int) -> list[int]:
    """Return the words of a payload, in order."""
    units = range(offset // ALIGNMENT, (offset + nbytes) // ALIGNMENT)
    return [the_map.payload(unit, part) for unit in units for part in range(PAYLOAD_WORDS)]
