from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmcached.shm.files import locks


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Two open file descriptions of one file."""
    path = tmp_path / "locked"
    fds = [os.open(path, os.O_CREAT | os.O_RDWR, 0o600) for _ in range(2)]
    yield fds[0], fds[1]
    for fd in fds:
        os.close(fd)


def test_exclusive_keeps_everybody_off(two: tuple[int, int]) -> None:
    mine, other = two
    assert locks.try_exclusive(mine, 5)
    assert not locks.try_exclusive(other, 5)
    assert locks.try_exclusive(other, 6)
    assert locks.try_exclusive(mine, 5)  # again: nothing changes


def test_is_free_sees_others_only_and_takes_nothing(two: tuple[int, int]) -> None:
    mine, other = two
    assert locks.try_exclusive(mine, 5)
    assert not locks.is_free(other, 5)
    assert locks.is_free(mine, 5)
    locks.unlock_all(mine)
    assert locks.is_free(other, 5)
    assert locks.try_exclusive(mine, 5)


def test_a_duplicate_keeps_the_lock_until_it_is_dropped(two: tuple[int, int]) -> None:
    mine, other = two
    duplicate = os.dup(mine)
    try:
        assert locks.try_exclusive(duplicate, 5)
        assert not locks.is_free(other, 5)
        locks.unlock_all(mine)
        assert locks.is_free(other, 5)
    finally:
        os.close(duplicate)
