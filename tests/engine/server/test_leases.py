"""HeldLeases: each lease is given back exactly once, never while somebody reads."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from mmcached.engine.server.leases import HeldLeases
from mmcached.wire.errors import LocalProtocolError
from mmcached.wire.handle import Handle, LeaseId


def handle(slot: int) -> Handle:
    return Handle(ring_id="0" * 32, epoch=1, slot=slot, generation=1, offset=64, nbytes=10)


def test_lease_goes_back_when_the_request_has_ended_and_every_worker_is_done() -> None:
    returned: list[Handle] = []
    book = HeldLeases(returned.append)
    book.hold(1, handle(5), LeaseId(9, 1))
    book.reading([1], [100, 200], step=3)
    book.end_request(1)
    assert returned == []
    for step in (3, 3, 2):
        book.read_done(100, step, 1)
    book.read_done(200, 2, 1)  # of another step
    assert returned == []
    book.read_done(200, 3, 1)
    assert returned == [handle(5)]
    book.read_done(200, 3, 1)
    book.end_request(1)
    assert returned == [handle(5)]
    assert len(book) == 0


def test_same_seq_twice_is_refused_and_changes_nothing() -> None:
    book = HeldLeases(lambda _: None)
    book.hold(1, handle(5), LeaseId(9, 1))
    with pytest.raises(LocalProtocolError):
        book.hold(2, handle(6), LeaseId(9, 1))
    book.check_integrity()
    assert len(book) == 1


class LeaseMachine(RuleBasedStateMachine):
    """Random holds, reads, ends and deaths against two plain dicts."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.returned: list[int] = []
        self.book = HeldLeases(lambda handle: self.returned.append(handle.slot))
        self.reads: dict[int, set[tuple[int, int]]] = {}
        self.open: dict[int, list[int]] = {}
        self.next_seq = 0
        self.step = 0

    @rule(target=requests, num=st.integers(0, 3))
    def add(self, num: int) -> int:
        request_id = len(self.open) + 1000
        self.open[request_id] = []
        for _ in range(num):
            self.next_seq += 1
            self.book.hold(request_id, handle(self.next_seq), LeaseId(1, self.next_seq))
            self.open[request_id].append(self.next_seq)
            self.reads[self.next_seq] = set()
        return request_id

    @rule(request=requests, epochs=st.sets(st.integers(1, 3), min_size=1))
    def read(self, request: int, epochs: set[int]) -> None:
        seqs = self.open.get(request, [])
        self.step += 1
        self.book.reading(seqs, epochs, self.step)
        for seq in seqs:
            self.reads[seq] |= {(epoch, self.step) for epoch in epochs}

    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        outstanding = sorted((seq, *read) for seq, reads in self.reads.items() for read in reads)
        if outstanding:
            seq, epoch, step = data.draw(st.sampled_from(outstanding))
            self.book.read_done(epoch, step, seq)
            self.reads[seq].discard((epoch, step))

    @rule(request=requests)
    def end(self, request: int) -> None:
        self.book.end_request(request)
        self.open[request] = []

    @rule(epoch=st.integers(1, 3))
    def worker_dies(self, epoch: int) -> None:
        self.book.worker_died(epoch)
        for reads in self.reads.values():
            reads -= {read for read in reads if read[0] == epoch}

    @invariant()
    def returned_is_what_may_be(self) -> None:
        held = {seq for seqs in self.open.values() for seq in seqs}
        expected = {seq for seq, reads in self.reads.items() if seq not in held and not reads}
        assert len(self.returned) == len(set(self.returned)), "a lease went back twice"
        assert set(self.returned) == expected
        self.book.check_integrity()


TestLeaseMachine = LeaseMachine.TestCase
