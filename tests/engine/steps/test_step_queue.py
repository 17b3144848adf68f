"""Steps begin, are launched and end in one order; what is out of order is refused and changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mmcached.engine.steps.step_queue import QueuedStep, StepQueue
from mmcached.wire.errors import LocalProtocolError


def queue_of(*step_ids: int) -> StepQueue[QueuedStep]:
    queue: StepQueue[QueuedStep] = StepQueue()
    for step_id in step_ids:
        queue.begin(QueuedStep(step_id))
    return queue


def state_of(queue: StepQueue[QueuedStep]) -> object:
    newest, building = (step and step.step_id for step in (queue.newest, queue.building))
    return [(step.step_id, step.is_launched) for step in queue], newest, building


def test_a_step_is_built_until_it_is_launched_or_another_begins() -> None:
    queue = queue_of(3, 5)
    assert state_of(queue) == ([(3, True), (5, False)], 5, 5)
    queue.launch(5)
    assert state_of(queue) == ([(3, True), (5, True)], 5, None)
    assert [step.step_id for step in reversed(queue)] == [5, 3]


def test_steps_end_from_the_oldest_on() -> None:
    queue = queue_of(1, 2, 3)
    assert queue.check_oldest(1) is queue.end_oldest(1)
    assert queue.end_oldest(2).step_id == 2
    assert state_of(queue) == ([(3, False)], 3, 3)
    assert queue.end_oldest(3).step_id == 3
    assert state_of(queue) == ([], None, None)
    queue.begin(QueuedStep(1))
    assert len(queue) == 1, "numbers rise among steps that are open"


def test_a_withdrawn_step_takes_the_later_ones_along() -> None:
    queue = queue_of(1, 2, 3)
    assert [step.step_id for step in queue.end_from(2)] == [2, 3]
    assert state_of(queue) == ([(1, True)], 1, None)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda queue: queue.begin(QueuedStep(2)), "cannot begin"),
        (lambda queue: queue.begin(QueuedStep(1)), "cannot begin"),
        (lambda queue: queue.launch(1), "cannot be launched"),
        (lambda queue: queue.check_oldest(2), "cannot be committed"),
        (lambda queue: queue.end_oldest(2), "cannot be committed"),
        (lambda queue: queue.end_from(7), "cannot be withdrawn"),
    ],
)
def test_what_is_out_of_order_is_refused_and_changes_nothing(
    call: Callable[[StepQueue[QueuedStep]], object], said: str
) -> None:
    queue = queue_of(1, 2)
    before = state_of(queue)
    with pytest.raises(LocalProtocolError, match=said):
        call(queue)
    assert state_of(queue) == before


def test_nothing_ends_where_nothing_is_open() -> None:
    queue = queue_of()
    for call in (queue.launch, queue.end_oldest, queue.end_from):
        with pytest.raises(LocalProtocolError):
            call(0)
