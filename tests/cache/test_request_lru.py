"""The move of one request: what it keeps, in which order, and what it serves when there is no room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcached.cache.request_lru import Entry, RequestLRU
from mmcached.wire.errors import InvariantError


def filled(capacity: int, **sizes: int) -> RequestLRU[str]:
    """A cache with these keys, oldest first; the value of each is its own name."""
    lru: RequestLRU[str] = RequestLRU(capacity)
    for key, nbytes in sizes.items():
        move(lru, (key, nbytes))
    return lru


def move(lru: RequestLRU[str], *wanted: tuple[str, int] | str) -> list[str | None]:
    """Ask for items; those with a size are given, with their key as value."""
    keys = [one if isinstance(one, str) else one[0] for one in wanted]
    given = [None if isinstance(one, str) else Entry(one[1], one[0]) for one in wanted]
    found = lru.move(keys, given)
    lru.check_integrity()
    return [None if entry is None else entry.value for entry in found]


def test_a_request_keeps_what_it_needs() -> None:
    """6 bytes hold A, B, C; D and E push out B, which this request does not need, rather than A, which is older."""
    lru = filled(6, A=2, B=2, C=2)
    assert move(lru, ("D", 1), ("E", 1), "A", "C") == ["D", "E", "A", "C"]
    assert lru.contents() == [("D", 1), ("E", 1), ("A", 2), ("C", 2)]


def test_what_the_request_itself_evicts_is_served_and_put_back() -> None:
    lru = filled(10, A=6)
    assert move(lru, ("B", 5), ("C", 5), "A") == ["B", "C", "A"]
    assert lru.contents() == [("A", 6)]


def test_what_is_missing_is_none_and_the_others_are_kept() -> None:
    lru = filled(10)
    assert move(lru, ("A", 1), "B", ("C", 1), "D", "B") == ["A", None, "C", None, None]
    assert lru.contents() == [("A", 1), ("C", 1)]


def test_an_oversized_item_is_served_to_all_of_its_request_and_not_kept() -> None:
    lru = filled(10, A=3)
    assert move(lru, ("X", 11), "X", "A") == ["X", "X", "A"]
    assert lru.contents() == [("A", 3)]


def test_an_oversized_value_takes_the_old_one_of_its_key_away() -> None:
    lru = filled(10, A=3, B=3)
    assert lru.move(["A"], [Entry(11, "new")]) == [Entry(11, "new")]
    assert lru.contents() == [("B", 3)], "the old value of A is not the newest any more"


def test_a_value_that_comes_again_takes_the_place_of_the_old() -> None:
    lru = filled(10, A=3, B=3)
    lru.move(["A", "A"], [Entry(4, "new"), None])
    assert lru.find("A") == Entry(4, "new")
    assert lru.contents() == [("B", 3), ("A", 4)]
    lru.move(["A", "A"], [Entry(5, "first"), Entry(6, "second")])
    assert lru.find("A") == Entry(6, "second")


def test_looking_changes_nothing() -> None:
    lru = filled(10, A=3, B=3)
    assert (lru.find("A"), lru.find("x")) == (Entry(3, "A"), None)
    assert ("A" in lru, "x" in lru) == (True, False)
    assert (lru.usage, lru.capacity) == (6, 10)
    assert lru.contents() == [("A", 3), ("B", 3)]


def test_touch_discard_clear() -> None:
    lru = filled(10, A=3, B=3, C=3)
    lru.touch("A")
    lru.touch("ghost")
    lru.discard("B")
    lru.discard("ghost")
    assert lru.contents() == [("C", 3), ("A", 3)]
    lru.clear()
    assert (lru.contents(), lru.usage) == ([], 0)


def test_lists_of_unequal_length_are_an_error_that_changes_nothing() -> None:
    lru = filled(10, A=3, B=3)
    with pytest.raises(ValueError, match="zip"):
        lru.move(["A", "C"], [Entry(1, "A")])
    assert lru.contents() == [("A", 3), ("B", 3)]


def test_integrity_is_really_checked() -> None:
    lru = filled(10, A=3)
    lru.usage = 4
    with pytest.raises(InvariantError):
        lru.check_integrity()


def wanted(lru: RequestLRU[str], request: list[str], size_of: Mapping[str, int]) -> list[tuple[str, int] | str]:
    """Give what is not there, and of a key that comes twice the first."""
    is_there = [key in lru or key in request[:index] for index, key in enumerate(request)]
    return [key if known else (key, size_of[key]) for key, known in zip(request, is_there, strict=True)]


requests = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=6), max_size=12)


@given(requests=requests, sizes=st.lists(st.integers(1, 12), min_size=8, max_size=8))
def test_touching_first_changes_nothing(requests: list[list[str]], sizes: Sequence[int]) -> None:
    """The two-pass rule is usually told with touches. A caller who touches, on one end only, causes no drift."""
    size_of = dict(zip("abcdefgh", sizes, strict=True))
    plain, touched = filled(10), filled(10)
    for request in requests:
        for key in request:
            touched.touch(key)
        for lru in (plain, touched):
            assert move(lru, *wanted(lru, request, size_of)) == request
        assert plain.contents() == touched.contents()


@given(requests=requests, sizes=st.lists(st.integers(1, 12), min_size=8, max_size=8))
def test_the_youngest_that_fit_are_kept(requests: list[list[str]], sizes: Sequence[int]) -> None:
    """Against the definition: go through all items ever asked for, the youngest first, as long as they fit."""
    size_of = dict(zip("abcdefgh", sizes, strict=True))
    lru = filled(10)
    order: list[str] = []  # what is kept, oldest first
    for request in requests:
        move(lru, *wanted(lru, request, size_of))
        for key in request:
            if size_of[key] > 10:
                continue
            order = [other for other in order if other != key] + [key]
            while sum(size_of[kept] for kept in order) > 10:
                del order[0]
        assert [key for key, _ in lru.contents()] == order
