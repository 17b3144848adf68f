"""The way back of leases: each exactly once, whoever interrupts whom, and nothing in a forked child."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable

import pytest

from mmcached.client.store.lease_returns import LeaseReturns
from mmcached.shm import ReaderEntry, RingReader, RingWriter
from mmcached.wire.errors import LocalProtocolError
from mmcached.wire.handle import Handle
from tests.shm.rings import make_ring, put


class Interrupted(ReaderEntry):
    """An entry that is interrupted while it gives back, as by a garbage collection."""

    meanwhile: Callable[[], None] | None = None

    def give_back(self, handle: Handle) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        super().give_back(handle)


def leased(ring: RingWriter, kind: type[ReaderEntry], count: int) -> tuple[ReaderEntry, Handle]:
    entry = kind.attach(ring.announcement)
    assert ring.attach(entry.reader_id, entry.incarnation)
    handle = put(ring, 100)
    for _ in range(count):
        ring.grant(entry.reader_id, handle)
    return entry, handle


def test_a_return_in_the_middle_of_a_return_is_not_lost() -> None:
    with make_ring() as ring:
        entry, handle = leased(ring, Interrupted, 2)
        returns = LeaseReturns(entry)
        assert isinstance(entry, Interrupted)
        entry.meanwhile = lambda: returns.give_back(handle)
        returns.give_back(handle)
        assert ring.stats().leases == 0
        ring.check_integrity()
        returns.close_reader()


def test_the_entry_closes_after_what_was_queued_before() -> None:
    with make_ring() as ring:
        entry, handle = leased(ring, Interrupted, 2)
        returns = LeaseReturns(entry)
        assert isinstance(entry, Interrupted)

        def view_and_mapping_die() -> None:
            returns.give_back(handle)
            returns.close_reader()

        entry.meanwhile = view_and_mapping_die
        returns.give_back(handle)
        assert ring.stats().leases == 0
        with pytest.raises(LocalProtocolError, match="closed"):
            ReaderEntry.give_back(entry, handle)
        returns.give_back(handle)  # a view that dies after all: nobody is harmed


def test_many_threads_return_each_lease_once() -> None:
    with make_ring() as ring:
        entry, handle = leased(ring, ReaderEntry, 400)
        returns = LeaseReturns(entry)

        def let_go() -> None:
            for _ in range(100):
                returns.give_back(handle)

        threads = [threading.Thread(target=let_go) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert ring.stats().leases == 0
        ring.check_integrity()
        returns.close_reader()


def test_an_abandoned_entry_gives_nothing_back_and_keeps_its_parents_locks() -> None:
    """What a forked child does; here in one process, whose other descriptor of the lock plays the parent."""
    with make_ring() as ring:
        entry, handle = leased(ring, ReaderEntry, 1)
        returns = LeaseReturns(entry)
        returns.abandon()
        returns.give_back(handle)
        returns.close_reader()
        assert ring.stats().leases == 1
        assert [event.reader_id for event in ring.poll_deaths()] == [entry.reader_id], (
            "nobody has the lock open any more"
        )


def test_the_entry_lives_as_long_as_a_view_of_the_mapping() -> None:
    with make_ring() as ring:
        entry, handle = leased(ring, ReaderEntry, 1)
        reader = RingReader.open(ring.announcement)
        returns = LeaseReturns(entry)
        reader.when_unmapped(returns.close_reader)
        view = reader.view(handle)
        reader.close()
        assert not ring.poll_deaths()
        del view
        assert len(ring.poll_deaths()) == 1
        with pytest.raises(LocalProtocolError, match="closed"):
            reader.when_unmapped(returns.close_reader)


class Idle(ReaderEntry):
    """An entry that gives nothing back for now."""

    is_idle = True

    def give_back(self, handle: Handle) -> None:
        if not self.is_idle:
            super().give_back(handle)


class Interrupt(BaseException):
    """What a signal handler raises, as Ctrl-C does."""


def test_interrupted_at_any_moment_it_goes_on() -> None:
    """A return that is interrupted may be lost, as what any finalizer does; those that come later are not."""

    def interrupt(*_: object) -> None:
        raise Interrupt

    with make_ring() as ring:
        entry, handle = leased(ring, Idle, 1)
        returns = LeaseReturns(entry)
        former = signal.signal(signal.SIGALRM, interrupt)
        try:
            for _ in range(1000):
                with contextlib.suppress(Interrupt):
                    signal.setitimer(signal.ITIMER_REAL, 20e-6)
                    while True:
                        returns.give_back(handle)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, former)
        returns.give_back(handle)  # and whatever an interrupt has left in the queue
        assert isinstance(entry, Idle)
        entry.is_idle = False
        returns.give_back(handle)
        assert ring.stats().leases == 0
        returns.close_reader()
