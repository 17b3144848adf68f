from __future__ import annotations

import doctest

from mmcached.shm.ring import departed
from mmcached.shm.ring.departed import Departed


def test_doctests() -> None:
    assert doctest.testmod(departed).failed == 0


def test_a_key_counts_as_gone_until_the_capacity_has_gone_after_it() -> None:
    books = Departed(capacity=100, num_slots=8)
    books.add(0, 50)
    books.add(1, 100)
    assert books.take(0)
    books.add(0, 50)
    books.add(1, 101)
    assert not books.take(0)


def test_nobody_has_gone_at_first() -> None:
    assert not any(map(Departed(capacity=100, num_slots=8).take, range(16)))


def test_of_two_keys_at_one_place_the_later_is_known() -> None:
    books = Departed(capacity=100, num_slots=8)
    books.add(3, 10)
    books.add(19, 10)
    assert not books.take(3)
    assert books.take(19)
