"""Claims: one owner per key, the next takes over from one that is gone, and each who waits is taken out once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mmcached.frontend.store.claim_table import NO_CLAIM, ClaimTable, ClaimTransfer, ClaimWaiter, random_token
from mmcached.wire.errors import RemoteProtocolError, ServiceUnavailable
from mmcached.wire.messages.frontend import ClaimRecord
from tests.frontend.integrity import check_claims
from tests.house.drawing import examples

ANN, BOB, EVE = (letter * 32 for letter in "abe")


def waiter(client_id: str, request_id: int = 1, *, peer: bytes = b"p", deadline: float = 10.0) -> ClaimWaiter:
    return ClaimWaiter(peer, ClaimRecord(client_id, request_id, "key", 5.0), deadline)


def make(
    max_open: int, *, max_per_client: int = 100, new_token: Callable[[], int] = random_token, now: float = 0.0
) -> ClaimTable:
    return ClaimTable(
        max_open=max_open,
        max_per_client=max_per_client,
        claim_timeout_s=30.0,
        clock=lambda: now,
        new_token=new_token,
    )


@pytest.fixture
def claims() -> ClaimTable:
    tokens = count(1)
    return make(4, new_token=lambda: next(tokens))


def test_one_client_cannot_have_all_claims() -> None:
    claims = make(10, max_per_client=2)
    claims.ask("a", waiter(ANN, 1))
    claims.ask("b", waiter(ANN, 2))
    with pytest.raises(ServiceUnavailable) as caught:
        claims.ask("c", waiter(ANN, 3))
    assert caught.value.details["limit"] == 2
    assert claims.ask("c", waiter(BOB)) is not None
    assert claims.ask("a", waiter(BOB, 2)) is None
    with pytest.raises(ServiceUnavailable):
        claims.ask("b", waiter(BOB, 3))


def test_a_claim_that_takes_too_long_passes_on(claims: ClaimTable) -> None:
    claims.ask("k", waiter(ANN))
    claims.ask("k", waiter(BOB, deadline=100.0))
    claims.ask("other", waiter(EVE))
    assert claims.pass_on_expired(29.0) == []
    assert claims.pass_on_expired(30.0) == [ClaimTransfer(waiter(BOB, deadline=100.0), 3)]
    claims.check_token(1, BOB, "whatever")  # it is nobody's
    assert claims.num_computing == 1, "nobody waits for the other"


def test_who_asks_for_many_waits_for_nobody_and_is_not_refused() -> None:
    tokens = count(1)
    claims = make(10, max_per_client=3, new_token=lambda: next(tokens))
    claims.ask("a", waiter(ANN, 1))
    names = ["a", "b", "b", "c", "d"]
    assert claims.ask_many(names, waiter(ANN, 2)) == [None, 2, None, 3, NO_CLAIM]
    assert claims.ask_many(names, waiter(BOB)) == [None, None, None, None, 4]
    assert claims.ask("b", waiter(EVE)) is None
    assert claims.cancel(ANN, 2) == [ClaimTransfer(waiter(EVE), 5)], "all of its answer"
    assert claims.num_computing == 3


def test_the_first_who_asks_owns_and_the_others_wait(claims: ClaimTable) -> None:
    assert claims.ask("k", waiter(ANN)) == 1
    assert claims.ask("k", waiter(BOB)) is None
    assert claims.ask("other", waiter(BOB, 2)) == 2
    assert (claims.num_computing, claims.num_waiting) == (2, 1)
    assert claims.clients() == {ANN, BOB}
    assert claims.finish("k") == [waiter(BOB)]
    assert claims.finish("k") == []
    assert claims.ask("k", waiter(EVE)) == 3, "it is nobody's again"
    assert (claims.num_claims, claims.num_waits) == (3, 1)


def test_when_the_owner_gives_up_the_next_computes(claims: ClaimTable) -> None:
    claims.ask("k", waiter(ANN))
    claims.ask("k", waiter(BOB))
    claims.ask("k", waiter(EVE))
    assert claims.drop(1, ANN) == [ClaimTransfer(waiter(BOB), 2)]
    assert claims.num_waiting == 1
    assert claims.drop(1, ANN) == [], "a token is good once"
    assert claims.drop(2, BOB) == [ClaimTransfer(waiter(EVE), 3)]
    assert claims.drop(3, EVE) == []
    assert claims.num_computing == 0


def test_a_client_that_is_gone_neither_computes_nor_waits(claims: ClaimTable) -> None:
    claims.ask("k", waiter(ANN))
    claims.ask("k", waiter(BOB))
    claims.ask("other", waiter(EVE))
    claims.ask("other", waiter(ANN, 2))
    assert claims.leave(ANN) == [ClaimTransfer(waiter(BOB), 3)]
    assert (claims.num_computing, claims.num_waiting) == (2, 0)


def test_what_was_under_way_over_a_former_connection_is_lost(claims: ClaimTable) -> None:
    claims.ask("k", waiter(ANN, peer=b"old"))
    claims.ask("other", waiter(ANN, 2, peer=b"new"))
    claims.ask("k", waiter(BOB))
    claims.ask("other", waiter(ANN, 3, peer=b"old"))
    assert claims.leave(ANN, but_over=b"new") == [ClaimTransfer(waiter(BOB), 3)]
    claims.check_token(2, ANN, "other")
    assert claims.num_computing == 2
    assert claims.finish("other") == []


def test_a_token_of_another_is_refused_and_changes_nothing(claims: ClaimTable) -> None:
    claims.ask("k", waiter(ANN))
    with pytest.raises(RemoteProtocolError):
        claims.check_token(1, BOB, "k")
    with pytest.raises(RemoteProtocolError):
        claims.drop(1, BOB)
    with pytest.raises(RemoteProtocolError):
        claims.check_token(1, ANN, "another key")
    assert claims.num_computing == 1
    claims.check_token(99, BOB, "k")  # nobody's


def test_a_new_epoch_voids_tokens_and_the_first_of_each_key_computes_anew(claims: ClaimTable) -> None:
    claims.ask("k", waiter(ANN))
    claims.ask("k", waiter(BOB))
    claims.ask("k", waiter(EVE))
    claims.ask("alone", waiter(ANN, 2))
    assert claims.begin_epoch() == [ClaimTransfer(waiter(BOB), 3)]
    assert claims.num_computing == 1
    assert claims.finish("k") == [waiter(EVE)]
    assert claims.num_computing == 0


def test_deadlines_and_cancels_end_waits(claims: ClaimTable) -> None:
    claims.ask("k", waiter(ANN))
    claims.ask("k", waiter(BOB, 1, deadline=5.0))
    claims.ask("k", waiter(BOB, 2, deadline=7.0))
    claims.cancel(BOB, 2)
    claims.cancel(BOB, 9)
    assert claims.take_expired(4.9) == []
    assert claims.take_expired(5.0) == [waiter(BOB, 1, deadline=5.0)]
    assert claims.take_expired(99.0) == []
    assert (claims.num_computing, claims.num_waiting) == (1, 0)


def test_an_owner_that_cancels_before_it_has_heard_passes_the_claim_on(claims: ClaimTable) -> None:
    claims.ask("k", waiter(ANN, 1))
    claims.ask("k", waiter(BOB, 1))
    assert [transfer.owner for transfer in claims.cancel(ANN, 1)] == [waiter(BOB, 1)]
    assert claims.cancel(ANN, 1) == []
    assert claims.cancel(BOB, 1) == [], "nobody is left"
    assert (claims.num_computing, claims.num_waiting) == (0, 0)


def test_only_so_many_are_open(claims: ClaimTable) -> None:
    for number in range(4):
        claims.ask("k", waiter(ANN, number))
    with pytest.raises(ServiceUnavailable, match="max_num_requests"):
        claims.ask("other", waiter(BOB))
    claims.cancel(ANN, 3)
    assert claims.ask("other", waiter(BOB)) is not None


def test_a_number_waits_once(claims: ClaimTable) -> None:
    claims.ask("k", waiter(ANN))
    claims.ask("k", waiter(BOB))
    with pytest.raises(RemoteProtocolError, match="waits already"):
        claims.ask("k", waiter(BOB))
    assert claims.take_all() == [waiter(BOB)]


def test_tokens_are_drawn_at_random_and_never_0() -> None:
    assert 0 not in {random_token() for _ in range(100)}
    first, second = make(1), make(1)
    assert first.ask("k", waiter(ANN)) != second.ask("k", waiter(ANN)), "those of a former frontend mean nothing"


class ClaimsModel(RuleBasedStateMachine):
    """Who was told what is written down: each asker hears of its request once, and a key has one living owner."""

    KEYS = ("a", "b")
    CLIENTS = (ANN, BOB, EVE)

    def __init__(self) -> None:
        super().__init__()
        self.claims = make(6)
        self.now = 0.0
        self.numbers = count(1)
        self.owner: dict[str, tuple[int, ClaimWaiter]] = {}
        self.waiting: dict[str, list[ClaimWaiter]] = {key: [] for key in self.KEYS}
        self.void: list[tuple[int, str]] = []

    def told(self, transfers: list[ClaimTransfer]) -> None:
        """These have become owners of keys whose owners have just been taken out of the books."""
        for transfer in transfers:
            key = next(key for key in self.KEYS if transfer.owner in self.waiting[key])
            assert key not in self.owner
            assert self.waiting[key].pop(0) is transfer.owner, "who has waited longest"
            self.owner[key] = (transfer.token, transfer.owner)
        for key in self.KEYS:
            assert key in self.owner or not self.waiting[key], "somebody waits for nobody"

    def end(self, key: str) -> tuple[int, ClaimWaiter]:
        token, owner = self.owner.pop(key)
        self.void.append((token, owner.client_id))
        return token, owner

    @rule(key=st.sampled_from(KEYS), client_id=st.sampled_from(CLIENTS), peer=st.sampled_from([b"1", b"2"]))
    def ask(self, key: str, client_id: str, peer: bytes) -> None:
        one = waiter(client_id, next(self.numbers), peer=peer, deadline=self.now + 3)
        if len(self.owner) + sum(map(len, self.waiting.values())) >= 6:
            with pytest.raises(ServiceUnavailable):
                self.claims.ask(key, one)
            return
        token = self.claims.ask(key, one)
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
            self.told(self.claims.drop(token, owner.client_id))
        else:
            assert self.claims.finish(key) == self.waiting[key]
            self.waiting[key] = []

    @rule(key=st.sampled_from(KEYS))
    def somebody_else_puts_it(self, key: str) -> None:
        """Without a claim: who waits has it, and the owner's claim has ended."""
        assert self.claims.finish(key) == self.waiting[key]
        if key in self.owner:
            self.end(key)
        self.waiting[key] = []

    @precondition(owned_keys)
    @rule(key=st.sampled_from(KEYS), thief=st.sampled_from(CLIENTS))
    def foreign_token(self, key: str, thief: str) -> None:
        token, owner = self.owner.get(key, (0, None))
        if owner is not None and owner.client_id != thief:
            with pytest.raises(RemoteProtocolError):
                self.claims.drop(token, thief)

    @rule(client_id=st.sampled_from(CLIENTS), but_over=st.sampled_from([None, b"1"]))
    def client_leaves(self, client_id: str, but_over: bytes | None) -> None:
        def has_left(one: ClaimWaiter) -> bool:
            return one.client_id == client_id and one.peer != but_over

        for key in self.KEYS:
            self.waiting[key] = [one for one in self.waiting[key] if not has_left(one)]
            if key in self.owner and has_left(self.owner[key][1]):
                self.end(key)
        self.told(self.claims.leave(client_id, but_over=but_over))

    @rule()
    def new_epoch(self) -> None:
        for key in list(self.owner):
            self.end(key)
        self.told(self.claims.begin_epoch())

    @rule(seconds=st.integers(1, 4))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        late = [one for key in self.KEYS for one in self.waiting[key] if one.deadline <= self.now]
        assert sorted(self.claims.take_expired(self.now), key=id) == sorted(late, key=id)
        for key in self.KEYS:
            self.waiting[key] = [one for one in self.waiting[key] if one not in late]

    @precondition(lambda self: self.void)
    @rule(data=st.data())
    def late_token(self, data: st.DataObject) -> None:
        """Whoever brings a token whose claim has ended changes nothing."""
        token, client_id = data.draw(st.sampled_from(self.void))
        assert self.claims.drop(token, client_id) == []

    @invariant()
    def agrees(self) -> None:
        check_claims(self.claims)
        assert self.claims.num_computing == len(self.owner)
        assert self.claims.num_waiting == sum(map(len, self.waiting.values()))
        for key, (token, owner) in self.owner.items():
            self.claims.check_token(token, owner.client_id, key)


TestClaimsModel = ClaimsModel.TestCase
TestClaimsModel.settings = settings(max_examples=examples(50), stateful_step_count=30)
