"""Explores a store of several segments: one frontend, writers with nurseries, readers with leases.

    role 0             the frontend, and its successor    `segment_frontend`, `segment_room`
    role 1 …           the writers                        `segment_peers`
    the roles behind   readers                            `segment_peers`, with the product's lookup and entries

What must hold:

    I1   a reader under a lease reads the bytes of the record that it has found
    I3   at rest each place belongs to a record, to its writer or to the frontend; an empty drained nursery has no file
    I4   what a writer may fill is named by no slot in any state
    I7   at rest a valid slot's bytes are whole, and no slot is left retired
    I9   a record that was put, acknowledged and never evicted is found
    I10  the file of a record under lease can be opened
    I11  what was put before a flush is not found when the flush was answered
    I12  at rest a key has one record
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

from scripts.verification import scenario, segment_words
from scripts.verification.explorer import Violation
from scripts.verification.replay import Kind, Machine, Runs
from scripts.verification.segment_frontend import Frontend
from scripts.verification.segment_jobs import Drain, Drop, Evict, Flush, Job, Receive, Settle
from scripts.verification.segment_peers import Reader, Reading, Writer, Writing
from scripts.verification.segment_room import Books, Row
from scripts.verification.segment_words import KEYS, MAIN, MAX_GENERATION, MAX_UNITS, Map, pack, unpack
from scripts.verification.self_lease_words import RUNNING, PlainMemory
from scripts.verification.weak_memory import Order, Role, Scene, World

SMALLEST = Map()


@dataclass(frozen=True)
class Setting:
    """Says what a world is, but for its order of memory.

    Attributes:
        records: what lies there at the start: (key, segment); nursery n is open, of writer n, who owns the rest of it.
        script: what the frontend does.
        successor: what each next life does, after it has adopted; None: there is none.
        puts: of each writer, the keys.
        replaces: puts go in the place of the records that their keys have.
        looks: of each reader, the keys.
        num_kills, mortal: kills that may happen, and the roles that they may hit.
        frontend, writer, reader: who plays; a mutant has others.
        patches: (module, name, replacement): what a mutant has in the product's place.
    """

    the_map: Map = SMALLEST
    records: tuple[tuple[int, int], ...] = ((0, 1),)
    script: tuple[Job, ...] = ()
    successor: tuple[Job, ...] | None = None
    puts: tuple[tuple[int, ...], ...] = ((1,),)
    replaces: bool = False
    looks: tuple[tuple[int, ...], ...] = ((0,),)
    num_kills: int = 0
    mortal: tuple[int, ...] = ()
    frontend: type[Frontend] = Frontend
    writer: type[Writer] = Writer
    reader: type[Reader] = Reader
    patches: tuple[tuple[Any, str, Any], ...] = ()

    def as_it_is(self) -> Setting:
        """Return the setting of a mutant with every rule in force."""
        return replace(self, frontend=Frontend, writer=Writer, reader=Reader, patches=())

    def jobs(self) -> tuple[Job, ...]:
        return (*self.script, *(self.successor or ()))

    def keeps(self, key: int) -> bool:
        """Return whether no job makes a key's record go."""
        return not any(isinstance(job, Flush) or job in (Evict(key), Drop(key)) for job in self.jobs())

    def awaits(self, role: int) -> bool:
        """Return whether the frontend waits until a process has ended."""
        return any(isinstance(job, Settle) and role in job.roles for job in self.jobs())

    def modelled_words(self) -> contextlib.AbstractContextManager[None]:
        return segment_words.modelled_words()

    def start(self, order: Order) -> World:
        """Return where an exploration begins."""
        the_map = self.the_map
        memory, books = set_scene(self)
        script = Script(self)
        lives: list[Hashable] = [(self.script, books, False)]
        if self.successor is not None:
            lives += [(self.successor, empty_books(the_map), True)] * self.num_kills
        roles = [Role("the frontend", tuple(((script, carry),) for carry in lives), is_mortal=0 in self.mortal)]
        for number, keys in zip(the_map.writers, self.puts, strict=True):
            owned = books.granted.intersection(the_map.places(number))
            writing = Writing(nursery=number, file=number, places=owned)
            program = self.writer(the_map, number, keys, self.replaces, self.awaits(number))
            roles.append(Role(f"writer {number}", (((program, writing),),), is_mortal=number in self.mortal))
        for reader_id, keys in enumerate(self.looks):
            is_mortal = the_map.reader(reader_id) in self.mortal
            reader = _reader(self, reader_id, keys)
            roles.append(Role(f"reader {reader_id}", (((reader, Reading()),),), is_mortal=is_mortal))
        scene = Scene(
            order=order,
            roles=tuple(roles),
            word_names=tuple(the_map.names()),
            owners=tuple(the_map.owners()),
            alive=tuple(the_map.word("alive", role) for role in range(len(roles))),
            check_rest=_check_rest(self),
            runs=Runs(reads_late=order is Order.WEAK),
            constants=_constants(self),
        )
        return scene.start(memory.words, self.num_kills)


Scenario = scenario.Scenario[Setting]


@dataclass(frozen=True, eq=False)
class Script:
    """The frontend's program: each run does one job; a successor adopts first."""

    setting: Setting

    def __call__(self, machine: Machine, carry: tuple[tuple[Job, ...], Books, bool]) -> Hashable:
        RUNNING.machine = machine
        jobs, books, adopts = carry
        frontend = self.setting.frontend(machine, self.setting.the_map, books)
        if adopts:
            frontend.adopt()
        else:
            frontend.do(jobs[0])
            jobs = jobs[1:]
        return (jobs, frontend.books, False) if jobs else None


def _reader(setting: Setting, reader_id: int, keys: tuple[int, ...]) -> Reader:
    there = {key for key, _ in setting.records}
    return setting.reader(
        setting.the_map,
        reader_id,
        keys,
        kept=frozenset(filter(setting.keeps, there)),
        stays=frozenset(key for keys in setting.puts for key in keys if setting.keeps(key) and key not in there),
        is_awaited=setting.awaits(setting.the_map.reader(reader_id)),
    )


def _constants(setting: Setting) -> frozenset[int]:
    """Return the words that nobody changes here, or only before another word has led to them."""
    the_map, jobs = setting.the_map, setting.jobs()
    names: list[tuple[object, ...]] = [("content", generation) for generation in range(1, MAX_GENERATION + 1)]
    if not any(isinstance(job, Flush) for job in jobs):
        names += [("epoch",), ("flushed",)]
    names += [("alive", role) for role in range(the_map.num_roles) if role not in setting.mortal]
    if setting.successor is None and not any(isinstance(job, Drain | Receive) for job in jobs):
        names += [("name", nursery) for nursery in the_map.nurseries]
    return frozenset(the_map.word(*name) for name in names)


def empty_books(the_map: Map) -> Books:
    return Books((0,) * the_map.num_writers)


def set_scene(setting: Setting) -> tuple[PlainMemory, Books]:
    """Put the records; grant the writers all other room."""
    the_map = setting.the_map
    RUNNING.machine = memory = PlainMemory(len(the_map.names()))
    frontend = Frontend(memory, the_map, empty_books(the_map))
    frontend.own(the_map.places(MAIN), granted=False)
    for writer in the_map.writers:
        frontend.open(writer)
    for slot, (key, segment) in enumerate(setting.records):
        place = min(frontend.books.free.intersection(the_map.places(segment)))
        frontend.occupy(place)
        content = pack(0, segment, 15, key)
        memory.words[the_map.word("bytes", place)] = content
        frontend.publish(slot, place, key, content)
        frontend.show(key, slot)
    for writer in the_map.writers:
        frontend.own(frontend.books.free.intersection(the_map.places(writer)), granted=True)
    return memory, frontend.books


def _check_rest(setting: Setting) -> Callable[[World], None]:
    the_map = setting.the_map

    def check(world: World) -> None:
        RUNNING.machine = memory = PlainMemory(0)
        memory.words = list(world.memory.words)
        frontend = Frontend(memory, the_map, empty_books(the_map))
        rows = list(frontend.rows())
        valid = [row for row in rows if row.is_valid]
        for row in valid:
            _check_bytes(frontend, row)
        found_keys = {row.key for row in valid if row.slot + 1 in frontend.shown(row.key)}
        for key in range(len(KEYS)):
            was_put = frontend.load("acknowledged", key) or any(key == first for first, _ in setting.records)
            if was_put and setting.keeps(key) and key not in found_keys:
                raise Violation(f"I9: at rest key {key} is not found")
        for writer in the_map.writers:
            nursery, _, mask = unpack(frontend.load("owned", writer), 3)
            if named := the_map.places_of(nursery, mask) & {row.place for row in rows}:
                raise Violation(f"I4: writer {writer} may fill {sorted(named)}, which a slot names")
        process = world.processes[0]
        if process.is_alive and process.threads[0].node.access.kind is Kind.END:
            _check_end(frontend, valid)

    return check


def _check_end(frontend: Frontend, valid: list[Row]) -> None:
    """Check what a frontend has left that has done all its jobs."""
    if len({row.key for row in valid}) < len(valid):
        raise Violation(f"I12: a key has two records: {valid}")
    for row in valid:
        if frontend.load("content", row.generation) >> 12 & 15 < frontend.load("epoch"):
            raise Violation(f"I11: generation {row.generation} is older than the epoch")
        if row.generation <= frontend.floor():
            raise Violation(f"I11: generation {row.generation} was flushed")


def _check_bytes(frontend: Frontend, row: Row) -> None:
    segment, unit = divmod(row.place, MAX_UNITS)
    file = frontend.load("name", segment) if segment else MAIN
    if segment and not file:
        raise Violation(f"I7: slot {row.slot} is valid, and names nursery {segment}, which is gone")
    found, content = frontend.load("bytes", MAX_UNITS * file + unit), frontend.load("content", row.generation)
    if found != content:
        raise Violation(f"I7: slot {row.slot} is valid as generation {row.generation}, and holds {found:#x}")
