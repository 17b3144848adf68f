"""Clients take turns, whatever each has queued."""

from __future__ import annotations

from mmcached.gateway.processing.fair_queue import FairQueue


def taken(queue: FairQueue[int]) -> list[int]:
    entries = []
    while (entry := queue.take()) is not None:
        entries.append(entry)
    return entries


def test_clients_take_turns() -> None:
    queue: FairQueue[int] = FairQueue()
    for entry in range(1, 5):
        queue.add(entry, "a")
    assert queue.take() == 1
    queue.add(10, "b")
    queue.add(20, "c")
    queue.add(11, "b")
    assert (len(queue), queue.num_of("a"), queue.num_of("b"), queue.num_of("d")) == (6, 3, 2, 0)
    assert taken(queue) == [2, 10, 20, 3, 11, 4]
    assert (len(queue), queue.num_of("a")) == (0, 0)


def test_one_of_a_thousand_waits_for_one_turn_of_another() -> None:
    queue: FairQueue[int] = FairQueue()
    for entry in range(1000):
        queue.add(entry, "a")
    queue.take()
    queue.add(5000, "b")
    assert 5000 in {queue.take(), queue.take()}


def test_an_entry_of_several_clients_comes_once_when_the_first_is_due() -> None:
    queue: FairQueue[int] = FairQueue()
    for entry in (1, 2, 3):
        queue.add(entry, "a")
    queue.add(3, "b")
    queue.add(3, "b")
    assert taken(queue) == [1, 3, 2]
    assert queue.num_of("b") == 0


def test_what_is_discarded_does_not_come() -> None:
    queue: FairQueue[int] = FairQueue()
    for entry in (1, 2):
        queue.add(entry, "a")
    queue.add(1, "b")
    assert [queue.discard(entry) for entry in (1, 1, 9)] == [True, False, False]
    assert 1 not in queue
    assert taken(queue) == [2]
    queue.add(4, "b")
    queue.clear()
    assert (len(queue), queue.take()) == (0, None)
