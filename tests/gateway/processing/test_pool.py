"""Mailbox and WorkPool: wake-ups without polling, outcomes of every kind, withdrawal, a clean end."""

from __future__ import annotations

import select
import threading
import weakref
from collections.abc import Iterator
from functools import partial

import pytest

from mmcached.gateway.processing.pool import IsWanted, Mailbox, WorkDone, WorkPool

DEADLINE_S = 30.0


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    mailbox = Mailbox()
    yield mailbox
    mailbox.close()


@pytest.fixture
def pool(mailbox: Mailbox) -> Iterator[WorkPool]:
    pool = WorkPool("work", 1, mailbox)
    yield pool
    pool.close()


def take(mailbox: Mailbox, number: int) -> list[WorkDone]:
    """Return `number` outcomes; each wait ends by the mailbox's own descriptor."""
    done: list[WorkDone] = []
    while len(done) < number:
        readable, _, _ = select.select([mailbox], [], [], DEADLINE_S)
        assert readable, "nobody wakes the loop"
        done += mailbox.take_all()
    return done


def test_outcomes_come_in_order_with_what_was_returned_or_raised(pool: WorkPool, mailbox: Mailbox) -> None:
    error = ValueError("no")

    def fail(is_wanted: IsWanted) -> None:
        raise error

    pool.submit("good", lambda _: 7, "client")
    pool.submit("bad", fail, "client")
    assert take(mailbox, 2) == [WorkDone("good", 0, 7), WorkDone("bad", 0, error)]
    assert error.__traceback__ is None


def test_an_emptied_mailbox_is_not_readable_and_wakes_again(mailbox: Mailbox) -> None:
    for _ in range(2):
        for number in range(3):
            mailbox.put(WorkDone(number, 0, None))
        assert [done.token for done in take(mailbox, 3)] == [0, 1, 2]
        assert select.select([mailbox], [], [], 0)[0] == []


def test_a_mailbox_that_nobody_empties_refuses_nothing(mailbox: Mailbox) -> None:
    """More wake-ups than the socket takes: the threads must not block, and nothing may be lost."""
    for number in range(20_000):
        mailbox.put(WorkDone(number, 0, None))
    assert len(take(mailbox, 20_000)) == 20_000
    assert select.select([mailbox], [], [], 0)[0] == []


def test_a_job_is_withdrawn_until_it_is_begun(pool: WorkPool, mailbox: Mailbox) -> None:
    begun, gate = threading.Event(), threading.Event()

    def hold(is_wanted: IsWanted) -> bool:
        begun.set()
        return gate.wait(DEADLINE_S)

    pool.submit("first", hold, "client")
    assert begun.wait(DEADLINE_S)
    for token in ("second", "third"):
        pool.submit(token, lambda _: None, "client")
    assert [pool.withdraw(token) for token in ("first", "second", "second", "unknown")] == [False, True, False, False]
    pool.generation = 5
    gate.set()
    assert [(done.token, done.generation) for done in take(mailbox, 2)] == [("first", 0), ("third", 5)]


def test_a_withdrawn_job_is_not_wanted_until_somebody_joins(
    pool: WorkPool, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmcached.gateway.processing.pool.GRACE_S", 0.0)
    looks, looked = threading.Semaphore(0), threading.Semaphore(0)
    seen = []

    def look(is_wanted: IsWanted) -> None:
        for _ in range(3):
            assert looks.acquire(timeout=DEADLINE_S)
            seen.append(is_wanted())
            looked.release()

    def look_now() -> None:
        looks.release()
        assert looked.acquire(timeout=DEADLINE_S)

    pool.submit("job", look, "one")
    look_now()
    assert pool.withdraw("job") is False
    look_now()
    pool.join("job", "two")
    look_now()
    assert seen == [True, False, True]
    take(mailbox, 1)
    pool.join("job", "three")
    assert pool.withdraw("job") is False, "it is done"


def test_closing_drops_what_waits_and_ends_with_what_runs(mailbox: Mailbox) -> None:
    begun, gate, ran = threading.Event(), threading.Event(), []
    pool = WorkPool("work", 1, mailbox)

    def hold(is_wanted: IsWanted) -> None:
        begun.set()
        assert gate.wait(DEADLINE_S)
        ran.append("first")

    pool.submit("first", hold, "client")
    pool.submit("second", lambda _: ran.append("second"), "client")
    assert begun.wait(DEADLINE_S)
    closer = threading.Thread(target=pool.close)
    closer.start()
    gate.set()
    closer.join(DEADLINE_S)
    assert not closer.is_alive()
    assert ran in (["first"], ["first", "second"]), "the second only if it was begun before the close"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("work")]


def test_an_idle_thread_keeps_nothing_of_its_last_job(pool: WorkPool, mailbox: Mailbox) -> None:
    class Large:
        pass

    def work(given: Large, is_wanted: IsWanted) -> Large:
        return Large()

    is_given_gone, is_made_gone = threading.Event(), threading.Event()
    given = Large()
    weakref.finalize(given, is_given_gone.set)
    pool.submit("job", partial(work, given), "client")
    (done,) = take(mailbox, 1)
    weakref.finalize(done.outcome, is_made_gone.set)
    del given, done
    assert is_given_gone.wait(DEADLINE_S)
    assert is_made_gone.wait(DEADLINE_S)
