"""Of all engines of a host that need a new item one encodes it; the others wait: not for ever, and not in a circle."""

from __future__ import annotations

from collections.abc import Callable

import torch

from mmcached.client import Claim
from mmcached.integrations.vllm.claims import ASK_AGAIN_S, MAX_SAVE_S, PAUSE_S, Claims
from tests.client.services import StoreService
from tests.clock import Clock
from tests.integrations.vllm.steps import PREFIX, Output, Request, Steps, item

A, B = item(1), item(2)
NewEngine = Callable[..., Steps]


def test_the_second_waits_and_loads(new_engine: NewEngine) -> None:
    one, two = new_engine(), new_engine()
    first = one.schedule(Request("r1", [A]))
    assert first is not None
    assert two.schedule(Request("r2", [A])) is None
    one.run(*first)
    one.settle(A)
    assert two.step(Request("r2", [A])) == []
    assert two.scheduler.counts["waits"] == 1


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
    assert one.scheduler.ensure_available(request, 0)
    one.scheduler.allocated(request, 0)
    assert one.plan(Output()).saves == {}
    assert two.step_when_free(Request("r2", [A])) == [A]


def test_a_claim_ends_when_no_request_asks_for_it(new_engine: NewEngine) -> None:
    """The request is aborted, or others use up the step."""
    one, two = new_engine(), new_engine()
    assert one.scheduler.ensure_available(Request("r1", [A]), 0)
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
    """Stands in for the service: gives what the test says, and counts."""

    def __init__(self) -> None:
        self.found: list[object] = []
        self.num_asked = 0

    def claim(self, keys: list[str]) -> list[object]:
        self.num_asked += 1
        return self.found[: len(keys)]


def pending() -> object:
    from mmcached.client import Pending

    return Pending("k")


def make() -> tuple[Claims, Answers, Clock]:
    answers, clock = Answers(), Clock()
    return Claims(answers, 5.0, clock), answers, clock  # type: ignore[arg-type]


def test_the_service_is_not_asked_at_each_step() -> None:
    claims, answers, clock = make()
    answers.found = [pending()]
    for _ in range(3):
        assert claims.must_wait(["k"]) == (True, {})
        claims.end_pass()
    assert answers.num_asked == 1
    clock.now += ASK_AGAIN_S
    claims.must_wait(["k"])
    assert answers.num_asked == 2


def test_nobody_waits_longer_than_agreed() -> None:
    claims, answers, clock = make()
    answers.found = [pending()]
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
    answers.found = [Claim("k")]
    assert not claims.must_wait(["k"])[0]
    claims.encode("k")
    answers.found = [pending()]
    assert claims.must_wait(["k"]) == (False, {}), "it has forgotten the item before that was saved"


def test_a_claim_of_whose_end_nobody_tells_ends_all_the_same() -> None:
    claims, answers, clock = make()
    answers.found = [Claim("k")]
    claims.must_wait(["k"])
    claims.encode("k")
    clock.now += MAX_SAVE_S
    claims.end_pass()
    assert claims.num_encoding == 1
    clock.now += 0.1
    claims.end_pass()
    assert claims.num_encoding == 0


def test_nobody_waits_for_what_the_store_does_not_keep() -> None:
    claims, answers, clock = make()
    answers.found = [Claim("k")]
    claims.must_wait(["k"])
    claims.encode("k")
    claims.not_saved("k", is_refused=True)
    answers.found = [pending()]
    assert claims.must_wait(["k"]) == (False, {})
    clock.now += PAUSE_S
    assert claims.must_wait(["k"])[0]


def test_what_is_found_while_it_is_claimed_is_loaded(store: StoreService, new_engine: NewEngine) -> None:
    one, two = new_engine(), new_engine()
    assert two.claims is not None
    one.clients[0].put(PREFIX + A, {"embeds": torch.zeros(4, 3)})
    is_waiting, hits = two.claims.must_wait([PREFIX + A])
    assert not is_waiting
    assert list(hits) == [PREFIX + A]
