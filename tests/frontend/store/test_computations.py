"""Claims: one owner per key, the next takes over from one that is gone, and each who waits is taken out once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mmcached.frontend.store.computations import Asker, Computations, Handover, random_token
from mmcached.wire.errors import RemoteProtocolError, ServiceUnavailable
from mmcached.wire.messages.frontend import ClaimRecord
from tests.house.drawing import examples

ANN, BOB, EVE = (letter * 32 for letter in "abe")


def asker(client_id: str, request_id: int = 1, *, peer: bytes = b"p", deadline: float = 10.0) -> Asker:
    return Asker(peer, ClaimRecord(client_id, request_id, "key", 5.0), deadline)


def make(
    max_open: int, *, max_per_client: int = 100, new_token: Callable[[], int] = random_token, now: float = 0.0
) -> Computations:
    return Computations(
        max_open=max_open,
        max_per_client=max_per_client,
        claim_timeout_s=30.0,
        clock=lambda: now,
        new_token=new_token,
    )


@pytest.fixture
def computations() -> Computations:
    tokens = count(1)
    return make(4, new_token=lambda: next(tokens))


def test_one_client_cannot_have_all_claims() -> None:
    computations = make(10, max_per_client=2)
    computations.ask("a", asker(ANN, 1))
    computations.ask("b", asker(ANN, 2))
    with pytest.raises(ServiceUnavailable) as caught:
        computations.ask("c", asker(ANN, 3))
    assert caught.value.details["limit"] == 2
    assert computations.ask("c", asker(BOB)) is not None
    assert computations.ask("a", asker(BOB, 2)) is None
    with pytest.raises(ServiceUnavailable):
        computations.ask("b", asker(BOB, 3))
    computations.check_integrity()


def test_a_claim_that_takes_too_long_passes_on(computations: Computations) -> None:
    computations.ask("k", asker(ANN))
    computations.ask("k", asker(BOB, deadline=100.0))
    computations.ask("other", asker(EVE))
    assert computations.pass_on_expired(29.0) == []
    assert computations.pass_on_expired(30.0) == [Handover(asker(BOB, deadline=100.0), 3)]
    computations.check_token(1, BOB, "whatever")  # it is nobody's
    assert computations.num_computing == 1, "nobody waits for the other"


def test_the_first_who_asks_owns_and_the_others_wait(computations: Computations) -> None:
    assert computations.ask("k", asker(ANN)) == 1
    assert computations.ask("k", asker(BOB)) is None
    assert computations.ask("other", asker(BOB, 2)) == 2
    assert (computations.num_computing, computations.num_waiting) == (2, 1)
    assert computations.clients() == {ANN, BOB}
    assert computations.take_waiters("k") == [asker(BOB)]
    computations.finish(1, ANN)
    assert computations.take_waiters("k") == []
    assert computations.ask("k", asker(EVE)) == 3, "it is nobody's again"
    assert (computations.num_claims, computations.num_waits) == (3, 1)


def test_when_the_owner_gives_up_the_next_computes(computations: Computations) -> None:
    computations.ask("k", asker(ANN))
    computations.ask("k", asker(BOB))
    computations.ask("k", asker(EVE))
    assert computations.drop(1, ANN) == Handover(asker(BOB), 2)
    assert computations.num_waiting == 1
    assert computations.drop(1, ANN) is None, "a token is good once"
    assert computations.drop(2, BOB) == Handover(asker(EVE), 3)
    assert computations.drop(3, EVE) is None
    assert computations.num_computing == 0


def test_a_client_that_is_gone_neither_computes_nor_waits(computations: Computations) -> None:
    computations.ask("k", asker(ANN))
    computations.ask("k", asker(BOB))
    computations.ask("other", asker(EVE))
    computations.ask("other", asker(ANN, 2))
    assert computations.leave(ANN) == [Handover(asker(BOB), 3)]
    assert (computations.num_computing, computations.num_waiting) == (2, 0)


def test_what_was_under_way_over_a_former_connection_is_lost(computations: Computations) -> None:
    computations.ask("k", asker(ANN, peer=b"old"))
    computations.ask("other", asker(ANN, 2, peer=b"new"))
    computations.ask("k", asker(BOB))
    computations.ask("other", asker(ANN, 3, peer=b"old"))
    assert computations.leave(ANN, but_over=b"new") == [Handover(asker(BOB), 3)]
    assert computations.take_waiters("other") == []
    computations.check_token(2, ANN, "other")
    assert computations.num_computing == 2


def test_a_token_of_another_is_refused_and_changes_nothing(computations: Computations) -> None:
    computations.ask("k", asker(ANN))
    with pytest.raises(RemoteProtocolError):
        computations.check_token(1, BOB, "k")
    with pytest.raises(RemoteProtocolError):
        computations.finish(1, BOB)
    with pytest.raises(RemoteProtocolError):
        computations.drop(1, BOB)
    with pytest.raises(RemoteProtocolError):
        computations.check_token(1, ANN, "another key")
    assert computations.num_computing == 1
    computations.check_token(99, BOB, "k")  # nobody's


def test_a_new_epoch_voids_tokens_and_the_first_of_each_key_computes_anew(computations: Computations) -> None:
    computations.ask("k", asker(ANN))
    computations.ask("k", asker(BOB))
    computations.ask("k", asker(EVE))
    computations.ask("alone", asker(ANN, 2))
    assert computations.begin_epoch() == [Handover(asker(BOB), 3)]
    computations.check_integrity()
    computations.finish(1, ANN)
    computations.finish(2, ANN)
    assert computations.take_waiters("k") == [asker(EVE)]
    assert computations.num_computing == 1


def test_deadlines_and_cancels_end_waits(computations: Computations) -> None:
    computations.ask("k", asker(ANN))
    computations.ask("k", asker(BOB, 1, deadline=5.0))
    computations.ask("k", asker(BOB, 2, deadline=7.0))
    computations.cancel(BOB, 2)
    computations.cancel(BOB, 9)
    assert computations.take_expired(4.9) == []
    assert computations.take_expired(5.0) == [asker(BOB, 1, deadline=5.0)]
    assert computations.take_expired(99.0) == []
    assert (computations.num_computing, computations.num_waiting) == (1, 0)


def test_an_owner_that_cancels_before_it_has_heard_passes_the_claim_on(computations: Computations) -> None:
    computations.ask("k", asker(ANN, 1))
    computations.ask("k", asker(BOB, 1))
    handover = computations.cancel(ANN, 1)
    assert handover is not None
    assert handover.asker == asker(BOB, 1)
    assert computations.cancel(ANN, 1) is None
    assert computations.cancel(BOB, 1) is None, "nobody is left"
    assert (computations.num_computing, computations.num_waiting) == (0, 0)


def test_only_so_many_are_open(computations: Computations) -> None:
    for number in range(4):
        computations.ask("k", asker(ANN, number))
    with pytest.raises(ServiceUnavailable, match="max_num_requests"):
        computations.ask("other", asker(BOB))
    computations.cancel(ANN, 3)
    assert computations.ask("other", asker(BOB)) is not None


def test_a_number_waits_once(computations: Computations) -> None:
    computations.ask("k", asker(ANN))
    computations.ask("k", asker(BOB))
    with pytest.raises(RemoteProtocolError, match="waits already"):
        computations.ask("k", asker(BOB))
    assert computations.take_all() == [asker(BOB)]
    computations.check_integrity()


def test_tokens_are_drawn_at_random_and_never_0() -> None:
    assert 0 not in {random_token() for _ in range(100)}
    first, second = make(1), make(1)
    assert first.ask("k", asker(ANN)) != second.ask("k", asker(ANN)), "those of a former frontend mean nothing"


class ComputationsModel(RuleBasedStateMachine):
    """Who was told what is written down: each asker hears of its request once, and a key has one living owner."""

    KEYS = ("a", "b")
    CLIENTS = (ANN, BOB, EVE)

    def __init__(self) -> None:
        super().__init__()
        self.computations = make(6)
        self.now = 0.0
        self.numbers = count(1)
        self.owner: dict[str, tuple[int, Asker]] = {}
        self.waiting: dict[str, list[Asker]] = {key: [] for key in self.KEYS}
        self.void: list[tuple[int, str]] = []

    def told(self, handovers: list[Handover]) -> None:
        """These have become owners of keys whose owners have just been taken out of the books."""
        for handover in handovers:
            key = next(key for key in self.KEYS if handover.asker in self.waiting[key])
            assert key not in self.owner
            assert self.waiting[key].pop(0) is handover.asker, "who has waited longest"
            self.owner[key] = (handover.token, handover.asker)
        for key in self.KEYS:
            assert key in self.owner or not self.waiting[key], "somebody waits for nobody"

    def end(self, key: str) -> tuple[int, Asker]:
        token, owner = self.owner.pop(key)
        self.void.append((token, owner.client_id))
        return token, owner

    @rule(key=st.sampled_from(KEYS), client_id=st.sampled_from(CLIENTS), peer=st.sampled_from([b"1", b"2"]))
    def ask(self, key: str, client_id: str, peer: bytes) -> None:
        one = asker(client_id, next(self.numbers), peer=peer, deadline=self.now + 3)
        if len(self.owner) + sum(map(len, self.waiting.values())) >= 6:
            with pytest.raises(ServiceUnavailable):
                self.computations.ask(key, one)
            return
        token = self.computations.ask(key, one)
        if key in self.owner:
            assert token is None
            self.waiting[key].append(one)
        else:
            assert token is not None
            self.owner[key] = (token, one)

    def owned_keys(self) -> bool:
        return bool(self.owner)

    @precondition(owned_keys)
    @rule(data=st.data(), is_dropped=st.booleans())
    def owner_ends(self, data: st.DataObject, is_dropped: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.owner)))
        token, owner = self.end(key)
        if is_dropped:
            handover = self.computations.drop(token, owner.client_id)
            self.told([handover] if handover else [])
        else:
            assert self.computations.take_waiters(key) == self.waiting[key]
            self.computations.finish(token, owner.client_id)
            self.waiting[key] = []

    @rule(key=st.sampled_from(KEYS))
    def somebody_else_puts_it(self, key: str) -> None:
        """Without a claim: who waits has it, the owner goes on."""
        assert self.computations.take_waiters(key) == self.waiting[key]
        self.waiting[key] = []

    @precondition(owned_keys)
    @rule(key=st.sampled_from(KEYS), thief=st.sampled_from(CLIENTS))
    def foreign_token(self, key: str, thief: str) -> None:
        token, owner = self.owner.get(key, (0, None))
        if owner is not None and owner.client_id != thief:
            with pytest.raises(RemoteProtocolError):
                self.computations.drop(token, thief)

    @rule(client_id=st.sampled_from(CLIENTS), but_over=st.sampled_from([None, b"1"]))
    def client_leaves(self, client_id: str, but_over: bytes | None) -> None:
        def has_left(one: Asker) -> bool:
            return one.client_id == client_id and one.peer != but_over

        for key in self.KEYS:
            self.waiting[key] = [one for one in self.waiting[key] if not has_left(one)]
            if key in self.owner and has_left(self.owner[key][1]):
                self.end(key)
        self.told(self.computations.leave(client_id, but_over=but_over))

    @rule()
    def new_epoch(self) -> None:
        for key in list(self.owner):
            self.end(key)
        self.told(self.computations.begin_epoch())

    @rule(seconds=st.integers(1, 4))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        late = [one for key in self.KEYS for one in self.waiting[key] if one.deadline <= self.now]
        assert sorted(self.computations.take_expired(self.now), key=id) == sorted(late, key=id)
        for key in self.KEYS:
            self.waiting[key] = [one for one in self.waiting[key] if one not in late]

    @precondition(lambda self: self.void)
    @rule(data=st.data())
    def late_token(self, data: st.DataObject) -> None:
        """Whoever brings a token whose claim has ended changes nothing."""
        token, client_id = data.draw(st.sampled_from(self.void))
        self.computations.finish(token, client_id)
        assert self.computations.drop(token, client_id) is None

    @invariant()
    def agrees(self) -> None:
        self.computations.check_integrity()
        assert self.computations.num_computing == len(self.owner)
        assert self.computations.num_waiting == sum(map(len, self.waiting.values()))
        for key, (token, owner) in self.owner.items():
            self.computations.check_token(token, owner.client_id, key)


TestComputationsModel = ComputationsModel.TestCase
TestComputationsModel.settings = settings(max_examples=examples(50), stateful_step_count=30)
