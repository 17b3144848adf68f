"""Leases that may overtake each other, taken once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mmcached.wire.handle import LeaseId
from mmcached.worker.compat.taken_leases import TakenLeases

INCARNATION = 7


@given(st.lists(st.integers(1, 12)))
def test_each_is_taken_once_in_any_order(seqs: list[int]) -> None:
    taken = TakenLeases(INCARNATION)
    seen: set[int] = set()
    for seq in seqs:
        assert taken.take(seq % 3, LeaseId(INCARNATION, seq)) == (seq not in seen)
        seen.add(seq)
    assert taken._beyond == {seq for seq in seen if not set(range(1, seq)) <= seen}, "what follows on is not kept"


def test_those_of_another_life_are_not_taken() -> None:
    taken = TakenLeases(INCARNATION)
    assert not taken.take(0, LeaseId(INCARNATION + 1, 1))
    assert taken.answer(INCARNATION + 1, 1, [0]) is None
    assert taken.take(0, LeaseId(INCARNATION, 1))


def test_what_a_barrier_has_given_up_is_taken_no_more() -> None:
    taken = TakenLeases(INCARNATION)
    for seq, slot in ((2, 5), (4, 5), (7, 6)):
        assert taken.take(slot, LeaseId(INCARNATION, seq))
    assert taken.answer(INCARNATION, 5, [4, 5, 6]) == {4: 0, 5: 2, 6: 1}
    assert not taken.take(0, LeaseId(INCARNATION, 3))
    assert taken.take(0, LeaseId(INCARNATION, 6))
    assert not taken.take(0, LeaseId(INCARNATION, 7))
    assert taken.take(0, LeaseId(INCARNATION, 8))
