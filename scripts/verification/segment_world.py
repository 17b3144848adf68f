"""Explores a store of several segments: one frontend, writers that fill their own segments, readers with leases.

    role 0             the frontend, and its successor    `segment_frontend`
    role 1 …           a writer for each further segment  `segment_peers`
    the roles behind   readers                            `segment_peers`, with the product's lookup and entries

What must hold:

    I1   a reader under a lease reads the bytes of the record that it has found
    I3   at rest each place belongs to a record, to its writer or to the frontend
    I7   at rest a valid slot's bytes are whole, and no slot is left retired
    I9   a record that was put, acknowledged and never evicted is found
    I10  the segment of a record under lease can be opened
    I11  what was put before a flush is not found when the flush was answered
    I12  at rest a key has one record
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from scripts.verification.explorer import Explorer, Finding, Violation
from scripts.verification.replay import Kind, Machine, Runs
from scripts.verification.segment_frontend import Frontend
from scripts.verification.segment_jobs import Drop, EndMove, Evict, Flush, Job, Open, Remove, Settle
from scripts.verification.segment_peers import Reader, Reading, Writer, Writing
from scripts.verification.segment_room import Books, Row
from scripts.verification.segment_words import MAIN, MAX_GENERATION, MAX_UNITS, Map, modelled_words, pack, unpack
from scripts.verification.self_lease_words import RUNNING, PlainMemory
from scripts.verification.weak_memory import Order, Role, Scene, World

SMALLEST = Map()


@dataclass(frozen=True)
class Setting:
    """Says what a world is, but for its order of memory.

    Attributes:
        records: what lies there at the start: (key, segment); all other room of writers is granted to them.
        script: what the frontend does.
        successor: what each next life does, after it has adopted; None: there is none.
        puts: of each writer, the keys.
        looks: of each reader, the keys.
        late: writers whose segment is not there at the start.
        num_kills, mortal: kills that may happen, and the roles that they may hit.
        frontend, writer, reader: who plays; a mutant has others.
        patches: (module, name, replacement): what a mutant has in the product's place.
    """

    the_map: Map = SMALLEST
    records: tuple[tuple[int, int], ...] = ((0, 1),)
    script: tuple[Job, ...] = ()
    successor: tuple[Job, ...] | None = None
    puts: tuple[tuple[int, ...], ...] = ((1,),)
    looks: tuple[tuple[int, ...], ...] = ((0,),)
    late: tuple[int, ...] = ()
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


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    setting: Setting
    order: Order

    def explore(self, *, limit: int | None = None) -> Finding:
        """Look at every state that can be reached.

        Args:
            limit: stop after so many states.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(modelled_words())
            for module, name, replacement in self.setting.patches:
                stack.enter_context(mock.patch.object(module, name, replacement))
            return Explorer(start(self.setting, self.order), limit=limit).run()


def start(setting: Setting, order: Order) -> World:
    the_map = setting.the_map
    memory, books = set_scene(setting)
    script = Script(setting)
    lives: list[Hashable] = [(setting.script, books, False)]
    if setting.successor is not None:
        lives += [(setting.successor, empty_books(the_map, 2 + number), True) for number in range(setting.num_kills)]
    roles = [Role("the frontend", tuple(((script, carry),) for carry in lives), is_mortal=0 in setting.mortal)]
    for segment, keys in zip(the_map.writers, setting.puts, strict=True):
        role = the_map.writer(segment)
        writer, is_mortal = setting.writer(the_map, segment, keys, setting.awaits(role)), role in setting.mortal
        roles.append(Role(f"writer {segment}", (((writer, Writing()),),), is_mortal=is_mortal))
    for reader_id, keys in enumerate(setting.looks):
        is_mortal = the_map.reader(reader_id) in setting.mortal
        reader = _reader(setting, reader_id, keys)
        roles.append(Role(f"reader {reader_id}", (((reader, Reading()),),), is_mortal=is_mortal))
    scene = Scene(
        order=order,
        roles=tuple(roles),
        word_names=tuple(the_map.names()),
        owners=tuple(the_map.owners()),
        alive=tuple(the_map.word("alive", role) for role in range(len(roles))),
        check_rest=_check_rest(setting),
        runs=Runs(reads_late=order is Order.WEAK),
        constants=_constants(setting),
    )
    return scene.start(memory.words, setting.num_kills)


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
    if EndMove() not in jobs:
        names.append(("copies",))
    names += [("alive", role) for role in range(the_map.num_roles) if role not in setting.mortal]
    changing = {job.writer for job in jobs if isinstance(job, Remove | Open)}
    names += [("name", segment) for segment in range(len(the_map.units)) if segment not in changing]
    return frozenset(the_map.word(*name) for name in names)


def empty_books(the_map: Map, life: int) -> Books:
    zeros = (0,) * len(the_map.units)
    return Books(life, frozenset(), frozenset({MAIN}), (frozenset(),) * len(zeros), zeros, zeros)


def set_scene(setting: Setting) -> tuple[PlainMemory, Books]:
    """Put the records; grant the writers all other room."""
    the_map = setting.the_map
    RUNNING.machine = memory = PlainMemory(len(the_map.names()))
    segments = [segment for segment in range(len(the_map.units)) if segment not in setting.late]
    places = [place for segment in segments for place in the_map.places(segment)]
    books = empty_books(the_map, 1)._replace(free=frozenset(places))
    frontend = Frontend(memory, the_map, books)
    for segment in segments:
        memory.words[the_map.word("name", segment)] = segment + 1
    for slot, (key, segment) in enumerate(setting.records):
        place = min(frontend.books.free.intersection(the_map.places(segment)))
        frontend.take(place)
        content = pack(0, segment, 15, key)
        memory.words[the_map.word("bytes", place)] = content
        frontend.publish(slot, place, key, content)
    for segment in the_map.writers:
        for _ in the_map.places(segment):
            frontend.grant(segment)
        memory.words[the_map.word("hello", segment)] = pack(1, 0, 0)
    return memory, frontend.books


def _check_rest(setting: Setting) -> Callable[[World], None]:
    the_map = setting.the_map

    def check(world: World) -> None:
        words = world.memory.words
        RUNNING.machine = memory = PlainMemory(0)
        memory.words = list(words)
        frontend = Frontend(memory, the_map, empty_books(the_map, 0))
        rows = [row for row in frontend.rows() if row.is_valid]
        for row in rows:
            _check_bytes(frontend, row)
        found_keys = {row.key for row in rows if frontend.load("shown", row.slot) == row.key + 1}
        for key in range(3):
            was_put = frontend.load("acknowledged", key) or any(key == first for first, _ in setting.records)
            if was_put and setting.keeps(key) and key not in found_keys:
                raise Violation(f"I9: at rest key {key} is not found")
        process = world.processes[0]
        has_ended = process.is_alive and process.threads[0].node.access.kind is Kind.END
        if has_ended and len({row.key for row in rows}) < len(rows):
            raise Violation(f"I12: a key has two records: {rows}")
        for row in rows if has_ended else ():
            if frontend.load("content", row.generation) >> 12 & 15 < frontend.load("epoch"):
                raise Violation(f"I11: generation {row.generation} is older than the epoch")
            if row.generation <= frontend.floor():
                raise Violation(f"I11: generation {row.generation} was flushed")
        script = setting.script if process.life == 1 else setting.successor or ()
        if has_ended and any(isinstance(job, Settle) for job in script):
            for writer in the_map.writers:
                _check_room(frontend, writer, process.life, {row.place for row in rows})

    return check


def _check_bytes(frontend: Frontend, row: Row) -> None:
    segment, unit = divmod(row.place, MAX_UNITS)
    file = frontend.load("name", segment)
    if not file:
        raise Violation(f"I7: slot {row.slot} is valid, and names segment {segment}, which is gone")
    found, content = frontend.load("bytes", MAX_UNITS * (file - 1) + unit), frontend.load("content", row.generation)
    if found != content:
        raise Violation(f"I7: slot {row.slot} is valid as generation {row.generation}, and holds {found:#x}")


def _check_room(frontend: Frontend, writer: int, life: int, occupied: set[int]) -> None:
    """Check that a living writer that is connected can use every place in which no record lies."""
    connection, *_ = unpack(frontend.load("hello", writer), 3)
    role = frontend.map.writer(writer)
    if connection != life or not (frontend.load("alive", role) and frontend.load("ended", role)):
        return
    unused = frontend.map.places_of(writer, frontend.load("unused", writer))
    granted = {frontend.load("grant", writer, number) for number in range(frontend.map.num_entries)}
    for place in frontend.map.places(writer):
        if place not in occupied | unused | granted:
            raise Violation(f"I3: writer {writer} never gets place {place} back")
