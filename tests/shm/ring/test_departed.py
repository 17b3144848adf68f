from __future__ import annotations

import pytest

from mmcached.shm.ring.departed import Departed


@pytest.mark.parametrize(("num_after", "is_recent"), [(15, True), (16, False)])
def test_a_key_of_mean_size_is_recent_until_one_and_a_half_times_the_capacity_was_evicted(
    num_after: int, is_recent: bool
) -> None:
    books = Departed(capacity=100, num_slots=64)
    for key in range(num_after + 1):
        books.add(key, 10)
    assert books.take_departed(0) == is_recent


def test_a_small_key_is_recent_for_longer_than_a_large_one() -> None:
    books = Departed(capacity=100, num_slots=64)
    for key in range(40):
        books.add(key, 20)
    books.add(40, 2)
    books.add(41, 80)
    for key in range(42, 50):
        books.add(key, 20)
    assert books.take_departed(40)
    assert not books.take_departed(41)


def test_nobody_has_gone_at_first() -> None:
    assert not any(map(Departed(capacity=100, num_slots=8).take_departed, range(16)))


def test_of_two_keys_at_one_place_the_later_is_known() -> None:
    books = Departed(capacity=100, num_slots=8)
    books.add(3, 10)
    books.add(19, 10)
    assert not books.take_departed(3)
    assert books.take_departed(19)
