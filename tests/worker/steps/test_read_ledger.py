"""The ledger of reads: a lease is done when its last read is released, once, from whatever thread."""

from __future__ import annotations

import threading

import pytest

from mmcached.wire.errors import InvariantError
from mmcached.wire.messages.engine import ReadDone
from mmcached.worker.steps.read_ledger import ReadLedger


def test_a_lease_is_done_when_it_is_released_and_only_then() -> None:
    ledger = ReadLedger()
    first, second = ledger.open(1, 10), ledger.open(2, 11)
    assert ledger.take_done() == []
    second.release()
    assert ledger.take_done() == [ReadDone(2, 11)]
    assert (ledger.is_open(1), ledger.is_open(2)) == (True, False)
    first.release()
    assert ledger.take_done() == [ReadDone(1, 10)]
    assert ledger.take_done() == []


def test_a_second_release_changes_nothing() -> None:
    ledger = ReadLedger()
    read = ledger.open(1, 10)
    read.release()
    read.release()
    assert ledger.take_done() == [ReadDone(1, 10)]
    read.release()
    assert ledger.take_done() == []


def test_a_lease_with_two_reads_is_done_after_both() -> None:
    ledger = ReadLedger()
    first, second = ledger.open(1, 10), ledger.open(1, 10)
    first.release()
    assert ledger.take_done() == []
    second.release()
    assert ledger.take_done() == [ReadDone(1, 10)]


def test_releases_of_other_threads_are_taken_by_the_owner() -> None:
    ledger = ReadLedger()
    reads = [ledger.open(1, seq) for seq in range(400)]
    threads = [threading.Thread(target=lambda part=part: [read.release() for read in part]) for part in (reads, reads)]
    for thread in threads:
        thread.start()
    taken: list[ReadDone] = []
    while any(thread.is_alive() for thread in threads):
        taken += ledger.take_done()
    for thread in threads:
        thread.join()
    taken += ledger.take_done()
    assert sorted(done.seq for done in taken) == list(range(400))
    ledger.check_integrity()


def test_integrity_sees_a_foreign_read() -> None:
    ledger = ReadLedger()
    ledger._open.add(ReadLedger().open(1, 2))
    with pytest.raises(InvariantError):
        ledger.check_integrity()
