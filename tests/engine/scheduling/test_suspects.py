"""Who is computed alone after a fault, until when, and who fails: the scheduler, when steps fail or kill a worker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mmcached.engine import ScheduledStep, Scheduler
from mmcached.wire.errors import CorruptImage, MmcachedError, PoisonousRequest
from mmcached.wire.limits import LimitsConfig
from tests.engine.builders import generate
from tests.engine.integrity import check_scheduler
from tests.engine.schedulers import schedule, scheduler_with

FAILURE = CorruptImage("images[0]", "x", "no image")


def commit(scheduler: Scheduler, step: ScheduledStep) -> list[int]:
    sampled = {chunk.request.request_id: 5 for chunk in step.chunks if chunk.sample}
    ended = scheduler.commit(step, sampled)
    check_scheduler(scheduler)
    return [request.request_id for request in ended]


def die(scheduler: Scheduler, step: ScheduledStep) -> None:
    scheduler.reset()
    scheduler.blame_death(step)
    check_scheduler(scheduler)


def fail(scheduler: Scheduler, step: ScheduledStep) -> None:
    scheduler.withdraw(step)
    scheduler.blame_failure(step, FAILURE)
    check_scheduler(scheduler)


class Outcome:
    """What became of requests some of which are poison."""

    def __init__(self) -> None:
        self.answered: list[int] = []
        self.failed: dict[int, MmcachedError] = {}
        self.num_faults = 0
        self.steps: list[list[int]] = []


def run_to_the_end(
    scheduler: Scheduler,
    is_fatal: Callable[[ScheduledStep], bool],
    end: Callable[[Scheduler, ScheduledStep], None] = die,
    *,
    most_steps: int = 500,
) -> Outcome:
    outcome = Outcome()
    for _ in range(most_steps):
        if not scheduler.has_work():
            return outcome
        step = schedule(scheduler)
        outcome.steps.append(step.request_ids())
        if is_fatal(step):
            outcome.num_faults += 1
            end(scheduler, step)
        else:
            outcome.answered += commit(scheduler, step)
        outcome.failed |= {request.request_id: error for request, error in scheduler.take_failed()}
    raise AssertionError(f"not over after {most_steps} steps: {outcome.steps[-10:]}")


def poison(*request_ids: int, at: int = 0) -> Callable[[ScheduledStep], bool]:
    """A step is fatal if it computes this position of one of these requests."""
    return lambda step: any(chunk.request.request_id in request_ids and chunk.end > at for chunk in step.chunks)


@pytest.mark.parametrize("poisonous", [(2,), (0,), (1, 3)])
def test_who_kills_workers_fails_alone_and_all_others_are_answered(poisonous: tuple[int, ...]) -> None:
    scheduler = scheduler_with(generate(number, 40, max_tokens=3) for number in range(4))
    outcome = run_to_the_end(scheduler, poison(*poisonous))
    assert sorted(outcome.answered) == [number for number in range(4) if number not in poisonous]
    assert sorted(outcome.failed) == list(poisonous)
    for error in outcome.failed.values():
        assert isinstance(error, PoisonousRequest)
        assert (error.details, error.retryable) == ({"num_deaths": 2, "limit": 2}, False)
    assert outcome.num_faults == 1 + len(poisonous)


def test_a_request_that_was_alone_from_the_start_is_tried_twice() -> None:
    outcome = run_to_the_end(scheduler_with([generate(0, 40)]), poison(0))
    assert (outcome.num_faults, outcome.answered, list(outcome.failed)) == (2, [], [0])


def test_the_limit_counts_deaths() -> None:
    scheduler = scheduler_with([generate(0, 40), generate(1, 40)], limits=LimitsConfig(max_deaths_per_request=4))
    outcome = run_to_the_end(scheduler, poison(0))
    assert (outcome.num_faults, outcome.answered) == (4, [1])
    assert outcome.failed[0].details == {"num_deaths": 4, "limit": 4}


def test_who_fails_a_step_fails_with_the_reason_and_all_others_are_answered() -> None:
    scheduler = scheduler_with(generate(number, 40, max_tokens=3) for number in range(4))
    outcome = run_to_the_end(scheduler, poison(2, at=40), fail)
    assert sorted(outcome.answered) == [0, 1, 3]
    assert outcome.failed == {2: FAILURE}
    assert outcome.num_faults == 2


def test_a_worker_that_dies_by_accident_costs_nobody_an_answer() -> None:
    deaths = iter([False, False, True])
    scheduler = scheduler_with(generate(number, 40, max_tokens=9) for number in range(4))
    outcome = run_to_the_end(scheduler, lambda step: next(deaths, False))
    assert sorted(outcome.answered) == [0, 1, 2, 3]
    assert outcome.steps[2] == [0, 1, 2, 3]
    parts = [[0], [0], [1], [0, 1], [2], [0, 1, 2], [3], [0, 1, 2, 3]]
    assert outcome.steps[3:11] == parts, "each alone until it has passed the place of the death, the others in between"


def test_suspects_and_the_others_take_turns() -> None:
    scheduler = scheduler_with([generate(0, 1200, max_tokens=2)], max_num_batched_tokens=500)
    for _ in range(2):
        commit(scheduler, schedule(scheduler))
    die(scheduler, schedule(scheduler))
    scheduler.add_request(generate(1, 10, max_tokens=4))
    parts = []
    while scheduler.has_work():
        step = schedule(scheduler)
        parts.append(step.request_ids())
        commit(scheduler, step)
    assert parts == [[0], [1], [0], [1], [0], [0, 1], [1]], "the suspect until it is behind its third chunk"


def test_newcomers_do_not_pass_a_suspect_that_waits_for_blocks() -> None:
    """The first needs half of the pool, the second most of it: it waits until the first is done."""
    limits = {"num_kv_blocks": 17, "max_model_len": 256, "max_num_batched_tokens": 256, "kv_watermark": 0.0}
    large = generate(1, 200, max_tokens=2)
    scheduler = scheduler_with([generate(0, 100, max_tokens=8), large], **limits)
    step = schedule(scheduler)
    assert step.request_ids() == [0]
    commit(scheduler, step)
    for number in range(2):  # two faults: each of them was in one
        scheduler.reset()
        scheduler.suspects.add(large, 200)
        large.num_faults = 1
        scheduler.add_request(generate(10 + number, 30, max_tokens=4))
    order = run_to_the_end(scheduler, poison()).answered
    assert order.index(1) < order.index(10) < order.index(11)


def test_two_that_are_fatal_only_together_are_both_answered() -> None:
    def is_fatal(step: ScheduledStep) -> bool:
        return {0, 1} <= set(step.request_ids())

    scheduler = scheduler_with(generate(number, 40, max_tokens=9) for number in range(3))
    outcome = run_to_the_end(scheduler, is_fatal)
    assert sorted(outcome.answered) == [0, 1, 2]
    assert outcome.num_faults == 3, "then they are kept apart for good"


def test_an_innocent_that_meets_two_poisons_is_answered() -> None:
    innocent = generate(0, 40, max_tokens=60)
    scheduler = scheduler_with([innocent, generate(1, 40)])
    is_fatal = poison(1, 2, at=0)
    failed: list[int] = []
    for _ in range(300):
        if len(failed) == 1 and innocent.alone_until == 0 and not scheduler.num_waiting:
            scheduler.add_request(generate(2, 40))
        if not scheduler.has_work():
            break
        step = schedule(scheduler)
        if is_fatal(step):
            die(scheduler, step)
        else:
            commit(scheduler, step)
        failed += [request.request_id for request, _ in scheduler.take_failed()]
    assert failed == [1, 2]
    assert len(innocent.output_token_ids) == 60


def test_who_is_aborted_as_the_worker_dies_is_nobody_s_suspect() -> None:
    scheduler = scheduler_with([generate(0, 40), generate(1, 40)])
    step = schedule(scheduler)
    scheduler.abort(0)
    die(scheduler, step)
    assert scheduler.take_failed() == []
    assert schedule(scheduler).request_ids() == [1]
