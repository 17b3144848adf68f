"""Explores programs that share memory through store buffers, and may be killed before every access.

    process: threads ── load: the own buffer first, then ──> memory: words, one writing process each
                └──── store ──> buffer ── arrives, at any time later ──────┘
                      fence: waits until the buffer is empty

Two machines. *TSO* (x86-64): stores arrive in their order. *Weak*: stores to different words arrive in any order, and
reads whose value decides nothing are done as late as can be; only a release store comes after all before it.

A thread runs on by itself to its next access that others can see or disturb: a store enters the buffer at once, since
only its arrival is seen, and words that nobody else writes may be read at any time. So a kill may also take back what
was issued since the last access that surely has been done. A killed process's other stores still arrive; then its byte
is free (its word of `alive` is 0), its own words are as it left them, and its next life may begin.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from scripts.verification.explorer import Event
from scripts.verification.replay import Effect, Issued, Kind, Node, Program, Runs, check_read


class Order(Enum):
    TSO = "x86-TSO"
    WEAK = "weak"


class Memory(NamedTuple):
    """The words of a world, and how many kills may still happen."""

    words: tuple[int, ...]
    num_kills: int

    def key(self) -> object:
        return self

    def with_word(self, word: int, value: int) -> Memory:
        return Memory((*self.words[:word], value, *self.words[word + 1 :]), self.num_kills)


class Thread(NamedTuple):
    """One thread of a living or dead process.

    Attributes:
        num_fresh: the last entries of the buffer, which may not have been issued yet.
    """

    node: Node
    buffer: tuple[Issued, ...] = ()
    num_fresh: int = 0

    def issue(self, node: Node, *, surely: bool) -> Thread:
        """Return the thread at its next node.

        Args:
            surely: all before the node has been done.
        """
        num_fresh = len(node.issued) + (0 if surely else self.num_fresh)
        return Thread(node, self.buffer + node.issued, num_fresh)

    def without(self, index: int) -> Thread:
        later = len(self.buffer) - index - 1
        return Thread(self.node, self.buffer[:index] + self.buffer[index + 1 :], min(self.num_fresh, later))

    def load(self, word: int, memory: Memory) -> int:
        for issued in reversed(self.buffer):
            if issued.word == word and issued.effect is not Effect.LATE_READ:
                return issued.value
        return memory.words[word]


class Process(NamedTuple):
    """A process in one of its lives: 1, 2 …"""

    life: int
    is_alive: bool
    threads: tuple[Thread, ...]

    def key(self) -> object:
        return self

    def with_thread(self, index: int, thread: Thread) -> Process:
        return self._replace(threads=(*self.threads[:index], thread, *self.threads[index + 1 :]))

    def is_quiet(self) -> bool:
        return not any(thread.buffer for thread in self.threads)

    def has_ended(self) -> bool:
        return self.is_quiet() and all(thread.node.access.kind in (Kind.END, Kind.WAIT) for thread in self.threads)


@dataclass(frozen=True, slots=True)
class Role:
    """A process to be.

    Attributes:
        lives: for each life, the program and first carry of each thread; every life has as many.
        locks: words that are 0 again at the start of a life.
        is_mortal: a kill may hit it.
    """

    name: str
    lives: tuple[tuple[tuple[Program, Hashable], ...], ...]
    locks: tuple[int, ...] = ()
    is_mortal: bool = True


@dataclass(frozen=True)
class Scene:
    """Keeps what does not change in a world.

    Attributes:
        word_names: for traces.
        owners: for each word the one thread (role, index) that ever stores to it, if there is only one.
        alive: for each role the word that says which life of it lives, 0 if none.
        check_rest: raises Violation if something is wrong when all have ended or died.
        constants: words that have their last value before any thread can come to read them.
    """

    order: Order
    roles: tuple[Role, ...]
    word_names: tuple[str, ...]
    owners: tuple[tuple[int, int] | None, ...]
    alive: tuple[int, ...]
    check_rest: Callable[[World], None]
    runs: Runs
    constants: frozenset[int] = frozenset()

    def start(self, words: Sequence[int], num_kills: int) -> World:
        """Return where an exploration begins: everybody in the first life."""
        world = World(self, [Memory(tuple(words), num_kills), *[None] * len(self.roles)])
        for role in range(len(self.roles)):
            world.begin_life(role, 1)
        world.settle()
        return world


class World:
    """The parts of one state: memory and processes."""

    def __init__(self, scene: Scene, parts: Sequence[Any]) -> None:
        self.scene = scene
        self.memory: Memory = parts[0]
        self.processes: list[Process] = list(parts[1:])

    def parts(self) -> Sequence[Any]:
        return (self.memory, *self.processes)

    def with_parts(self, parts: Sequence[Any]) -> World:
        return World(self.scene, parts)

    def events(self) -> Iterator[Event]:
        """Yield every event; only the choices of a thread that has some, as they disturb nobody."""
        threads = [
            (role, index, thread)
            for role, process in enumerate(self.processes)
            for index, thread in enumerate(process.threads)
        ]
        for role, index, thread in threads:
            if self.processes[role].is_alive and thread.node.access.kind is Kind.CHOOSE:
                for choice in range(thread.node.access.detail):
                    yield self._step(role, index, choice, f"chooses {choice}")
                return
        for role, index, thread in threads:
            yield from self._arrivals(role, index, thread)
            if self.processes[role].is_alive:
                yield from self._steps(role, index, thread)
        for role, process in enumerate(self.processes):
            yield from self._deaths(role, process)

    def _arrivals(self, role: int, index: int, thread: Thread) -> Iterator[Event]:
        for position in self._next_to_arrive(thread.buffer):
            effect, word, value = thread.buffer[position]
            label = (
                f"{self._name(role, index)}: its {effect.value} of {self.scene.word_names[word]}",
                "is done:",
                value,
            )
            yield Event(label, partial(_arrive, role, index, position))

    def _next_to_arrive(self, buffer: tuple[Issued, ...]) -> Iterator[int]:
        if self.scene.order is Order.TSO:
            yield from range(min(1, len(buffer)))
            return
        for position, (effect, word, _) in enumerate(buffer):
            waits_for_all = effect is Effect.RELEASE
            if not any(waits_for_all or earlier.word == word for earlier in buffer[:position]):
                yield position

    def _steps(self, role: int, index: int, thread: Thread) -> Iterator[Event]:
        kind, word, detail = thread.node.access
        if kind is Kind.LOAD:
            value = thread.load(word, self.memory)
            yield self._step(role, index, value, f"reads {self.scene.word_names[word]} = {value}")
        elif kind is Kind.WAIT and thread.load(word, self.memory) == detail:
            yield self._step(role, index, None, f"has waited for {self.scene.word_names[word]} = {detail}")
        elif kind is Kind.ACQUIRE and not self.memory.words[word]:
            label = (self._name(role, index), f"locks {self.scene.word_names[word]}")
            yield Event(label, partial(_acquire, role, index, word))

    def _step(self, role: int, index: int, result: Hashable, what: str) -> Event:
        return Event((self._name(role, index), what), partial(_answer, role, index, result))

    def _deaths(self, role: int, process: Process) -> Iterator[Event]:
        name = self.scene.roles[role].name
        if process.is_alive and self.memory.num_kills and self.scene.roles[role].is_mortal:
            for undone in product(*(range(thread.num_fresh + 1) for thread in process.threads)):
                what = f", its last {' + '.join(map(str, undone))} not yet done" if any(undone) else ""
                yield Event(("KILL", name + what), partial(_kill, role, undone)).not_counted_on()
        if not process.is_alive and process.is_quiet() and process.life < len(self.scene.roles[role].lives):
            yield Event((name, "starts anew"), partial(World.begin_life, role=role, life=process.life + 1))

    def _name(self, role: int, index: int) -> str:
        role_name = self.scene.roles[role].name
        return role_name if len(self.processes[role].threads) == 1 else f"{role_name}, thread {index + 1}"

    # ---- what events do

    def set_thread(self, role: int, index: int, thread: Thread) -> None:
        self.processes[role] = self.processes[role].with_thread(index, thread)

    def begin_life(self, role: int, life: int) -> None:
        programs = self.scene.roles[role].lives[life - 1]
        nodes = [self.scene.runs.start(program, carry) for program, carry in programs]
        self.processes[role] = Process(life, True, tuple(Thread(node).issue(node, surely=True) for node in nodes))
        self.memory = self.memory.with_word(self.scene.alive[role], life)
        for lock in self.scene.roles[role].locks:
            self.memory = self.memory.with_word(lock, 0)

    def settle(self) -> None:
        """Let each thread go on to its next access that matters to others, and free the bytes of the dead."""
        for role, process in enumerate(self.processes):
            if process.is_alive:
                for index, thread in enumerate(process.threads):
                    self._run_on(role, index, thread)
            elif process.is_quiet() and self.memory.words[self.scene.alive[role]] == process.life:
                self.memory = self.memory.with_word(self.scene.alive[role], 0)

    def _run_on(self, role: int, index: int, thread: Thread) -> None:
        start = thread
        while True:
            kind, word, detail = thread.node.access
            if kind is Kind.WRONG:
                raise detail
            is_undisturbed = self.scene.owners[word] == (role, index) or word in self.scene.constants
            if kind is Kind.LOAD and is_undisturbed:
                thread = thread.issue(thread.node.after(thread.load(word, self.memory)), surely=False)
            elif kind is Kind.FENCE and not thread.buffer:
                thread = thread.issue(thread.node.after(), surely=True)
            elif kind is Kind.END and detail is not None:
                thread = thread.issue(thread.node.next_run(), surely=False)
            else:
                break
        if thread is not start:
            self.set_thread(role, index, thread)

    # ---- what must hold

    def check_part(self, part: Any) -> None:
        """Do nothing: a program says what is wrong with what it reads."""

    def check(self) -> None:
        if self.is_at_rest():
            self.scene.check_rest(self)

    def is_at_rest(self) -> bool:
        return all(process.has_ended() if process.is_alive else process.is_quiet() for process in self.processes)


def _answer(role: int, index: int, result: Hashable, world: World) -> None:
    thread = world.processes[role].threads[index]
    world.set_thread(role, index, thread.issue(thread.node.after(result), surely=True))


def _acquire(role: int, index: int, word: int, world: World) -> None:
    world.memory = world.memory.with_word(word, 1)
    _answer(role, index, None, world)


def _arrive(role: int, index: int, position: int, world: World) -> None:
    thread = world.processes[role].threads[index]
    effect, word, value = thread.buffer[position]
    if effect is Effect.LATE_READ:
        check_read(value, world.memory.words[word])
    else:
        world.memory = world.memory.with_word(word, value)
    world.set_thread(role, index, thread.without(position))


def _kill(role: int, undone: tuple[int, ...], world: World) -> None:
    process = world.processes[role]
    threads = []
    for thread, num_undone in zip(process.threads, undone, strict=True):
        done = thread.buffer[: len(thread.buffer) - num_undone]
        threads.append(Thread(_DEAD, tuple(issued for issued in done if issued.effect is not Effect.LATE_READ)))
    world.processes[role] = Process(process.life, False, tuple(threads))
    world.memory = world.memory._replace(num_kills=world.memory.num_kills - 1)


_DEAD = Runs(reads_late=False).start(lambda machine, carry: None, None)
