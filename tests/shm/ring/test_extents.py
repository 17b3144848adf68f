"""Sets of bytes against a plain set of numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mmcached.shm.ring.extents import Extents

SIZE = 40
Step = tuple[bool, int, int]
PLACES = st.integers(0, SIZE)


@given(st.lists(st.tuples(st.booleans(), PLACES, PLACES), max_size=20), PLACES, PLACES)
def test_it_is_a_set_of_bytes(steps: list[Step], low: int, high: int) -> None:
    found, wanted = Extents(), set[int]()
    for adds, begin, end in steps:
        (found.add if adds else found.remove)(begin, end)
        (wanted.update if adds else wanted.difference_update)(range(begin, end))
    assert {place for begin, end in found for place in range(begin, end)} == wanted
    assert found.num_bytes == len(wanted)
    assert all(end < begin for (_, end), (begin, _) in zip(list(found), list(found)[1:], strict=False))
    assert found.covers(low, high) == (low < high and wanted.issuperset(range(low, high)))
    assert {one for begin, end in found.common(low, high) for one in range(begin, end)} == wanted & set(
        range(low, high)
    )
    around = found.around(low)
    assert (around is not None and around[0] <= low < around[1]) == (low in wanted)
    copied = found.copy()
    copied.add(0, SIZE)
    assert found.num_bytes == len(wanted)


@given(st.lists(st.tuples(PLACES, PLACES), max_size=8), st.integers(1, 10), PLACES)
def test_a_stretch_is_found_if_there_is_one_the_next_first(pairs: list[tuple[int, int]], size: int, start: int) -> None:
    room = Extents(pairs)
    found = room.find(size, start)
    places = [begin for begin in range(SIZE) if room.covers(begin, begin + size)]
    assert (found is None) == (not places)
    if found is not None:
        behind = [begin for begin in places if begin >= start]
        assert found == (min(behind) if behind else min(places))
