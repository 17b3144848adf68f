from __future__ import annotations

from mmcached.shm.ring.received import ReceivedLeases
from mmcached.wire.handle import LeaseId


def test_a_lease_is_received_once_and_only_by_its_incarnation() -> None:
    received = ReceivedLeases(5)
    assert not received.receive(0, LeaseId(4, 1))
    assert received.receive(0, LeaseId(5, 1))
    assert not received.receive(0, LeaseId(5, 1))
    assert received.receive(0, LeaseId(5, 2))
    assert received.answer(5, 2, [0, 1]) == {0: 2, 1: 0}


def test_a_gap_is_seen_before_the_lease_behind_it() -> None:
    received = ReceivedLeases(5)
    assert not received.has_gap_before(LeaseId(5, 1))
    received.receive(0, LeaseId(5, 1))
    assert received.has_gap_before(LeaseId(5, 3))
    assert not received.has_gap_before(LeaseId(4, 3)), "another incarnation's numbers say nothing"
    received.receive(0, LeaseId(5, 3))
    assert not received.has_gap_before(LeaseId(5, 4))


def test_what_a_barrier_has_counted_as_lost_is_not_received_later() -> None:
    """After a new connection the old one may still deliver; its leases have been taken back by then."""
    received = ReceivedLeases(5)
    received.receive(0, LeaseId(5, 1))
    assert received.answer(4, 3, [0]) is None
    assert received.answer(5, 3, [0]) == {0: 1}
    assert not received.receive(0, LeaseId(5, 2))
    assert not received.has_gap_before(LeaseId(5, 4))
    assert received.receive(0, LeaseId(5, 4))
    assert received.answer(5, 4, [0]) == {0: 2}
