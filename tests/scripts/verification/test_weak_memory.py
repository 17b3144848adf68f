"""The modelled memory does what the litmus tests of the field allow, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from scripts.verification.explorer import Explorer, Finding
from scripts.verification.replay import Machine, Program, Runs
from scripts.verification.weak_memory import Order, Role, Scene, World

X, Y, FIRST_RESULT, SECOND_RESULT, LOCK, FIRST_ALIVE = range(6)
Plain = Callable[[Machine], None]


def explore(
    order: Order, *processes: tuple[Plain, ...], num_kills: int = 0, num_lives: int = 1
) -> tuple[Finding, set[tuple[int, ...]]]:
    """Return the finding, and what X, Y and both results are at rest; each process has some threads."""
    seen = set()

    def note(world: World) -> None:
        seen.add(world.memory.words[:LOCK])

    programs = [tuple((_program(plain), ()) for plain in process) for process in processes]
    roles = tuple(Role(f"process {number}", (threads,) * num_lives, (LOCK,)) for number, threads in enumerate(programs))
    size = FIRST_ALIVE + len(roles)
    scene = Scene(
        order=order,
        roles=roles,
        word_names=tuple(map(str, range(size))),
        owners=(None,) * size,
        alive=tuple(range(FIRST_ALIVE, size)),
        check_rest=note,
        runs=Runs(reads_late=order is Order.WEAK),
    )
    return Explorer(scene.start([0] * size, num_kills)).run(), seen


def _program(plain: Plain) -> Program:
    return lambda machine, carry: plain(machine)


def store_then_load(mine: int, other: int, result: int, *, fences: bool) -> Plain:
    def run(machine: Machine) -> None:
        machine.store(mine, 1)
        if fences:
            machine.fence()
        machine.store(result, 10 + machine.load(other))

    return run


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("fences", list(itertools.product([False, True], repeat=2)))
def test_a_store_may_pass_a_later_load_unless_both_sides_fence(order: Order, fences: tuple[bool, bool]) -> None:
    first = store_then_load(X, Y, FIRST_RESULT, fences=fences[0])
    second = store_then_load(Y, X, SECOND_RESULT, fences=fences[1])
    finding, seen = explore(order, (first,), (second,))
    assert finding.is_exhausted
    assert {(1, 1, 10, 11), (1, 1, 11, 10), (1, 1, 11, 11)} <= seen
    assert ((1, 1, 10, 10) in seen) == (fences != (True, True))


def test_a_thread_sees_its_own_stores_at_once() -> None:
    _, seen = explore(Order.WEAK, (store_then_load(X, X, FIRST_RESULT, fences=False),))
    assert seen == {(1, 0, 11, 0)}


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("is_release", [False, True])
def test_a_message_may_arrive_before_its_content_on_a_weak_machine_only(order: Order, *, is_release: bool) -> None:
    def send(machine: Machine) -> None:
        machine.store(X, 1)
        (machine.store_release if is_release else machine.store)(Y, 1)

    def receive(machine: Machine) -> None:
        machine.store(FIRST_RESULT, 10 + machine.load(Y))
        machine.store(SECOND_RESULT, 10 + machine.load(X))

    _, seen = explore(order, (send,), (receive,))
    assert (1, 1, 11, 11) in seen
    assert ((1, 1, 11, 10) in seen) == (order is Order.WEAK and not is_release)


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("is_release", [False, True])
def test_a_read_may_be_late_on_a_weak_machine_only(order: Order, *, is_release: bool) -> None:
    def read(machine: Machine) -> None:
        machine.expect(X, 0)
        (machine.store_release if is_release else machine.store)(Y, 1)

    def overwrite(machine: Machine) -> None:
        machine.wait(Y, 1)
        machine.store(X, 1)

    finding, _ = explore(order, (read,), (overwrite,))
    assert (finding.violation is not None) == (order is Order.WEAK and not is_release)


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("is_locked", [False, True])
def test_a_lock_lets_one_thread_in_at_a_time(order: Order, *, is_locked: bool) -> None:
    def add(machine: Machine) -> None:
        machine.store(X, machine.load(X) + 1)

    def add_alone(machine: Machine) -> None:
        with machine.locked(LOCK):
            add(machine)

    finding, seen = explore(order, (add_alone if is_locked else add,) * 2)
    assert finding.is_exhausted
    assert {words[X] for words in seen} == ({2} if is_locked else {1, 2})


def store_both(machine: Machine) -> None:
    machine.store(X, 1)
    machine.store(Y, 1)


def test_a_kill_may_come_between_any_two_stores() -> None:
    _, strong = explore(Order.TSO, (store_both,), num_kills=1)
    assert {words[:2] for words in strong} == {(0, 0), (1, 0), (1, 1)}
    _, weak = explore(Order.WEAK, (store_both,), num_kills=1)
    assert {words[:2] for words in weak} == {(0, 0), (1, 0), (1, 1)}  # what was done arrives, in any order


def test_what_was_done_before_a_load_is_not_undone_by_a_kill() -> None:
    def run(machine: Machine) -> None:
        machine.store(X, 1)
        if machine.load(SECOND_RESULT):
            machine.store(FIRST_RESULT, 1)

    def answer(machine: Machine) -> None:
        machine.store(SECOND_RESULT, 1)

    _, seen = explore(Order.TSO, (run,), (answer,), num_kills=1)
    assert all(words[X] for words in seen if words[FIRST_RESULT])
    assert (0, 0, 0, 1) in seen


def test_the_next_life_begins_when_all_stores_of_the_last_have_arrived() -> None:
    def run(machine: Machine) -> None:
        has_former = machine.load(X)
        machine.store(X, 1)
        machine.store(Y, 1)
        if has_former:
            machine.store(FIRST_RESULT, 10 + machine.load(Y))

    finding, seen = explore(Order.TSO, (run,), num_kills=1, num_lives=2)
    assert finding.is_exhausted
    assert {words[FIRST_RESULT] for words in seen} == {0, 11}


@pytest.mark.parametrize("num_choices", [1, 3])
def test_every_choice_is_made(num_choices: int) -> None:
    _, seen = explore(Order.TSO, (lambda machine: machine.store(X, machine.choose(num_choices)),))
    assert {words[X] for words in seen} == set(range(num_choices))


def test_a_program_that_remembers_is_found_out() -> None:
    words = [X, Y]

    def forgetful(machine: Machine) -> None:
        words.reverse()
        machine.load(words[0])
        machine.load(FIRST_RESULT)

    finding, _ = explore(Order.TSO, (forgetful,))
    assert finding.violation is not None
    assert "not a function of its results" in finding.violation
