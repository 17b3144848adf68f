"""The way back of leases: each exactly once, whoever interrupts whom, and nothing in a forked child."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from mmcached.client.store.lease_returns import LeaseReturns
from mmcached.shm import ReaderRow, RingReader, RingWriter
from mmcached.wire.errors import LocalProtocolError
from mmcached.wire.handle import Handle
from tests.shm.rings import make_ring, put


class Interrupted(ReaderRow):
    """A row that is interrupted while it gives back, as by a garbage collection."""

    meanwhile: Callable[[], None] | None = None

    def give_back(self, handle: Handle) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        super().give_back(handle)


def leased(ring: RingWriter, kind: type[ReaderRow], count: int) -> tuple[ReaderRow, Handle]:
    row = kind.attach(ring.announcement)
    assert ring.attach(row.row, row.nonce)
    handle = put(ring, 100)
    for _ in range(count):
        ring.grant(row.row, handle)
    return row, handle


def test_a_return_in_the_middle_of_a_return_is_not_lost() -> None:
    with make_ring() as ring:
        row, handle = leased(ring, Interrupted, 2)
        returns = LeaseReturns(row)
        assert isinstance(row, Interrupted)
        row.meanwhile = lambda: returns.give_back(handle)
        returns.give_back(handle)
        assert ring.stats().leases == 0
        ring.check_integrity()
        returns.close_reader()


def test_the_row_closes_after_what_was_queued_before() -> None:
    with make_ring() as ring:
        row, handle = leased(ring, Interrupted, 2)
        returns = LeaseReturns(row)
        assert isinstance(row, Interrupted)

        def view_and_mapping_die() -> None:
            returns.give_back(handle)
            returns.close_reader()

        row.meanwhile = view_and_mapping_die
        returns.give_back(handle)
        assert ring.stats().leases == 0
        with pytest.raises(LocalProtocolError, match="closed"):
            ReaderRow.give_back(row, handle)
        returns.give_back(handle)  # a view that dies after all: nobody is harmed


def test_many_threads_return_each_lease_once() -> None:
    with make_ring() as ring:
        row, handle = leased(ring, ReaderRow, 400)
        returns = LeaseReturns(row)

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


def test_an_abandoned_row_gives_nothing_back_and_keeps_its_parents_locks() -> None:
    """What a forked child does; here in one process, whose other descriptor of the lock plays the parent."""
    with make_ring() as ring:
        row, handle = leased(ring, ReaderRow, 1)
        returns = LeaseReturns(row)
        returns.abandon()
        returns.give_back(handle)
        returns.close_reader()
        assert ring.stats().leases == 1
        assert [event.row for event in ring.poll_deaths()] == [row.row], "nobody has the lock open any more"


def test_the_row_lives_as_long_as_a_view_of_the_mapping() -> None:
    with make_ring() as ring:
        row, handle = leased(ring, ReaderRow, 1)
        reader = RingReader.open(ring.announcement)
        returns = LeaseReturns(row)
        reader.when_unmapped(returns.close_reader)
        view = reader.view(handle)
        reader.close()
        assert not ring.poll_deaths()
        del view
        assert len(ring.poll_deaths()) == 1
        with pytest.raises(LocalProtocolError, match="closed"):
            reader.when_unmapped(returns.close_reader)


def test_a_row_knows_whether_its_writer_lives() -> None:
    ring = make_ring()
    with ReaderRow.attach(ring.announcement) as row:
        assert row.is_writer_alive()
        ring.close()
        assert not row.is_writer_alive()
