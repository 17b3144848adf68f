"""Of all engines of a host that need a new item one encodes it; the others wait: not for ever, and not in a circle."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from mmcached.client import Claim, Hit, Pending
from mmcached.integrations.vllm import contact
from mmcached.integrations.vllm.claims import ASK_AGAIN_S, MAX_SAVE_S, PAUSE_S, EngineClaims
from mmcached.wire.messages.frontend import ClaimRecords
from tests.client.services import StoreService
from tests.clock import Clock
from tests.integrations.vllm.steps import PREFIX, Output, Request, Steps, item
from tests.present import present

A, B = item(1), item(2)
NewEngine = Callable[..., Steps]


def test_the_second_waits_and_loads(new_engine: NewEngine) -> None:
    one, two = new_engine(), new_engine()
    first = present(one.schedule(Request("r1", [A])))
    assert two.schedule(Request("r2", [A])) is None
    one.run(*first)
    one.settle(A)
    assert two.step(Request("r2", [A])) == []
    assert two.scheduler.counts["waits"]


def test_an_engine_that_ends_leaves_its_items_to_others(new_engine: NewEngine) -> None:
    one, two = new_engine(), new_engine()
    assert one.schedule(Request("r1", [A])) is not None
    assert two.schedule(Request("r2", [A])) is None
    one.close()
    assert two.step_when_free(Request("r2", [A])) == [A]


def test_what_is_not_encoded_in_the_end_others_encode(new_engine: NewEngine) -> None:
    """The request is preempted in the pass that has allocated its item."""
    one, two = new_engine(), new_engine()
    request = Request("r1", [A])
    assert one.is_available(request)
    one.scheduler.allocated(request, 0)
    assert one.plan(Output()).saves == {}
    assert two.step_when_free(Request("r2", [A])) == [A]


def test_a_claim_ends_when_no_request_asks_for_it(new_engine: NewEngine) -> None:
    """The request is aborted, or others use up the step."""
    one, two = new_engine(), new_engine()
    assert one.is_available(Request("r1", [A]))
    one.plan(Output())
    assert two.schedule(Request("r2", [A])) is None, "it was asked for in that pass"
    one.plan(Output())
    assert two.step_when_free(Request("r2", [A])) == [A]


def test_a_save_that_is_dropped_ends_its_claim(new_engine: NewEngine) -> None:
    one, two = new_engine(max_waiting_bytes=1), new_engine()
    assert one.step(Request("r1", [A])) == [A]
    assert one.scheduler.counts["dropped"] == 1
    assert two.step_when_free(Request("r2", [A])) == [A]


def test_who_must_wait_for_one_item_holds_no_other(new_engine: NewEngine) -> None:
    one, two, three = new_engine(), new_engine(), new_engine()
    assert one.schedule(Request("r1", [A])) is not None
    assert two.schedule(Request("r2", [B, A])) is None
    assert three.step_when_free(Request("r3", [B])) == [B]


class Answers:
    """Stands in for the contact: gives what the test says, and counts.

    Attributes:
        found: the answer to each question; None for a service that is not asked.
    """

    def __init__(self) -> None:
        self.found: Hit | Claim | Pending | None = None
        self.num_asked = 0
        self.forgotten: set[str] = set()
        self._asked: list[str] = []

    def ask(self, keys: list[str]) -> bool:
        self.num_asked += 1
        if self.found is not None:
            self._asked += keys
        return self.found is not None

    def hold(self) -> None:
        """Have what was asked answered never."""
        self._asked.clear()

    def forget(self, keys: set[str]) -> None:
        self.forgotten |= keys

    def take_answers(self) -> list[tuple[str, object]]:
        asked, self._asked = self._asked, []
        return [(key, self.found) for key in asked]


def answered(claims: EngineClaims, key: str) -> bool:
    """Return whether a request must wait for a key once the service has answered."""
    claims.must_wait([key])
    return claims.must_wait([key])[0]


def make() -> tuple[EngineClaims, Answers, Clock]:
    answers, clock = Answers(), Clock()
    return EngineClaims(answers, 5.0, clock), answers, clock  # type: ignore[arg-type]


def test_the_service_is_not_asked_at_each_step() -> None:
    claims, answers, clock = make()
    answers.found = Pending("k")
    for _ in range(3):
        assert claims.must_wait(["k"]) == (True, {})
        claims.end_pass()
    assert answers.num_asked == 1
    clock.now += ASK_AGAIN_S
    claims.must_wait(["k"])
    assert answers.num_asked == 2


def test_nobody_waits_longer_than_agreed() -> None:
    claims, answers, clock = make()
    answers.found = Pending("k")
    while clock.now < 5.0:
        assert claims.must_wait(["k"])[0]
        claims.end_pass()
        clock.now += 0.5
    assert claims.must_wait(["k"]) == (False, {})
    claims.encode("k")
    claims.end_pass()
    assert claims.num_encoding == 1


def test_an_engine_does_not_wait_for_itself() -> None:
    claims, answers, _ = make()
    answers.found = Claim("k")
    assert not answered(claims, "k")
    claims.encode("k")
    answers.found = Pending("k")
    assert not answered(claims, "k"), "it has forgotten the item before that was saved"


def test_an_answer_that_comes_while_its_item_is_encoded_changes_nothing() -> None:
    claims, answers, clock = make()
    answers.found = Pending("k")
    assert claims.must_wait(["k"])[0]
    claims.not_saved("other", is_refused=True)
    assert not claims.must_wait(["k"])[0], "nobody waits for a while"
    claims.encode("k")
    claims.end_pass()
    clock.now += PAUSE_S
    assert not answered(claims, "k")
    assert (claims.num_held, claims.num_encoding) == (0, 1)


def test_what_is_found_between_two_steps_is_there_in_the_second() -> None:
    claims, answers, _ = make()
    answers.found = hit = Hit({})
    assert claims.must_wait(["k"]) == (True, {})
    claims.end_pass()
    assert claims.must_wait(["k"]) == (False, {"k": hit})


def test_an_answer_that_nobody_wants_any_more_is_not_taken() -> None:
    claims, answers, _ = make()
    answers.found = Claim("k")
    claims.must_wait(["k"])
    answers.hold()
    claims.end_pass()
    claims.end_pass()
    assert answers.forgotten == {"k"}
    assert claims.num_asked == 0


def test_a_claim_of_whose_end_nobody_tells_ends_all_the_same() -> None:
    claims, answers, clock = make()
    answers.found = Claim("k")
    assert not answered(claims, "k")
    claims.encode("k")
    clock.now += MAX_SAVE_S
    claims.end_pass()
    assert claims.num_encoding == 1
    clock.now += 0.1
    claims.end_pass()
    assert claims.num_encoding == 0


def test_nobody_waits_for_what_the_store_does_not_keep() -> None:
    claims, answers, clock = make()
    answers.found = Claim("k")
    assert not answered(claims, "k")
    claims.encode("k")
    claims.not_saved("k", is_refused=True)
    answers.found = Pending("k")
    assert not answered(claims, "k")
    clock.now += PAUSE_S
    assert answered(claims, "k")


def test_nobody_waits_for_a_service_that_is_not_asked() -> None:
    claims, answers, clock = make()
    assert not answered(claims, "k")
    answers.found = Pending("k")
    assert answered(claims, "k")
    answers.found = None
    clock.now += ASK_AGAIN_S
    assert not answered(claims, "k"), "it cannot say that the other has ended"


def test_what_is_claimed_for_nobody_is_let_go_of(store: StoreService, new_engine: NewEngine) -> None:
    """The request is aborted before the answer comes, and no step follows."""
    one, two = new_engine(), new_engine(claim_wait_s=1e6)
    store.hold = (ClaimRecords,)
    assert not one.scheduler.ensure_available(Request("r1", [A]), 0)
    while not store.num_held:
        pass  # the test's own deadline ends it
    one.plan(Output())
    one.plan(Output())
    store.release()
    assert two.step_when_free(Request("r2", [A])) == [A]


TOO_SOON_S = 0.05
"""On a machine that two servers keep busy the service's word comes later than that."""
SLOWER = 10
"""Times that all takes in a test that plays such a machine, so that one that is as busy passes it too."""


def test_a_step_does_not_wait_for_the_service_and_a_request_does(
    store: StoreService, new_engine: NewEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contact, "CLAIM_S", SLOWER * contact.CLAIM_S)
    one, two = new_engine(), new_engine()
    assert one.schedule(Request("r1", [A])) is not None
    store.hold = (ClaimRecords,)
    until = time.monotonic() + 1.2 * SLOWER * TOO_SOON_S
    while time.monotonic() < until:
        assert not two.scheduler.ensure_available(Request("r2", [A]), 0)
        assert two.scheduler.ensure_available(Request("r3", []), 0)
        two.plan(Output())
    assert store.count(ClaimRecords) == 2, "steps ask once"
    store.release()
    assert two.schedule(Request("r2", [A])) is None, "it is known now that the first encodes it"


def test_a_service_that_says_nothing_is_waited_for_once(
    store: StoreService, new_engine: NewEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contact, "CLAIM_S", TOO_SOON_S)
    monkeypatch.setattr(contact, "CLAIM_AGAIN_S", 1e6)
    engine = new_engine()
    store.hold = (ClaimRecords,)
    assert engine.step(Request("r1", [A])) == [A]
    assert engine.scheduler.ensure_available(Request("r2", [B]), 0)
    assert store.num_held == 1
    store.release()


def test_what_is_found_while_it_is_claimed_is_loaded(store: StoreService, new_engine: NewEngine) -> None:
    one, two = new_engine(), new_engine()
    assert two.claims is not None
    one.clients[0].put(PREFIX + A, {"embeds": torch.zeros(4, 3)})
    while (found := two.claims.must_wait([PREFIX + A]))[0]:
        pass  # the test's own deadline ends it
    assert list(found[1]) == [PREFIX + A]
