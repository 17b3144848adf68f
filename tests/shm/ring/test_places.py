from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from hypothesis import given
from hypothesis import strategies as st

from mmcached.shm.ring.places import MANY_PLACES, Pins, Place, choose

EACH = range(9 * MANY_PLACES)


def never(index: int) -> bool:
    return False


def singles(prices: Iterable[int]) -> Iterator[Place]:
    """Yield one place per chunk."""
    return ((price, 0, index, index + 1) for index, price in enumerate(prices))


def test_a_place_without_a_price_is_taken_before_the_next_are_looked_at() -> None:
    places = singles([5, 5, 4, 0, 1, 0])
    assert choose(places, Pins(EACH, never)) == (0, 0, 3, 4)
    assert next(places)[2] == 4


@given(
    prices=st.lists(st.integers(0, 9), max_size=3 * MANY_PLACES),
    length=st.integers(1, 5),
    pinned=st.sets(st.integers(0, 3 * MANY_PLACES)),
)
def test_against_brute_force(prices: list[int], length: int, pinned: set[int]) -> None:
    asked = Counter[int]()

    def is_pinned(index: int) -> bool:
        asked[index] += 1
        return index in pinned

    places = [(price, 0, index, index + length) for index, price in enumerate(prices)]
    is_open = {place: not pinned & set(range(place[2], place[3])) for place in places}
    found = choose(iter(places), Pins(EACH, is_pinned))
    assert not asked or set(asked.values()) == {1}
    if found is None:
        assert not any(is_open.values())
        return
    assert is_open[found]
    block = found[2] // MANY_PLACES * MANY_PLACES
    least = min(place[0] for place in places[block : block + MANY_PLACES] if is_open[place])
    assert found[0] == least
    assert not any(is_open[place] for place in places[:block])
