"""Nobody waits for ever: arrivals that never end, and sizes that meet in unlucky ways."""

from __future__ import annotations

import random

import pytest

from mmcached.engine import Request, Scheduler
from mmcached.wire.config import ServiceConfig
from tests.engine.builders import generate, image, small_config


def run_dry(scheduler: Scheduler, most_steps: int) -> list[int]:
    """Run to the end; return the ids of the finished in the order of their end."""
    finished: list[int] = []
    for _ in range(most_steps):
        step = scheduler.schedule()
        if step is None:
            return finished
        sampled = {chunk.request.request_id: 1 for chunk in step.chunks if chunk.sample}
        finished += [request.request_id for request in scheduler.commit(step, sampled)]
    raise AssertionError(
        f"{scheduler.num_running} running and {scheduler.num_waiting} waiting after {most_steps} steps"
    )


@pytest.mark.parametrize("num_tokens_before", [0, 3, 5])
def test_an_item_longer_than_the_share_of_a_long_prompt_is_computed_in_one_piece(num_tokens_before: int) -> None:
    """Items may not be split, and a prompt that shares the step with others gets less than the item is long."""
    config = small_config(
        max_patches=8, disable_chunked_mm_input=True, long_prefill_token_threshold=4, max_num_batched_tokens=8
    )
    scheduler = Scheduler(config)

    def request(request_id: int) -> Request:
        item = image(f"item {request_id}", num_tokens_before, 8)
        return generate(request_id, num_tokens_before + 8 + 2, [item], max_tokens=2)

    for request_id in range(3):
        scheduler.add_request(request(request_id))
    assert sorted(run_dry(scheduler, 40)) == [0, 1, 2]


MAX_MODEL_LEN = 40


def random_config(rng: random.Random) -> ServiceConfig:
    block_size = rng.choice((1, 3, 4))
    return small_config(
        max_patches=5,
        block_size=block_size,
        num_kv_blocks=-(-MAX_MODEL_LEN // block_size) + 1 + rng.randrange(12),
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=rng.choice((2, 3)),
        max_num_batched_tokens=rng.choice((5, 8, 16)),
        long_prefill_token_threshold=rng.choice((0, 3)),
        max_num_encoder_input_tokens=rng.choice((0, 7)),
        encoder_cache_size=rng.choice((0, 6, 9)),
        encoder_cache_scope=rng.choice(("shared", "request")),
        disable_chunked_mm_input=rng.random() < 0.5,
    )


def random_request(rng: random.Random, request_id: int) -> Request:
    tokens = [rng.randrange(2)] * rng.randint(1, 9)
    items = []
    for _ in range(rng.randrange(4)):
        size = rng.randint(1, 5)
        items.append(image(f"{rng.randrange(3)} of {size}", len(tokens), size))
        tokens += [0] * size + [rng.randrange(2)] * rng.randrange(3)
    return generate(request_id, tokens, items, max_tokens=rng.randint(1, 8))


@pytest.mark.parametrize("seed", range(12))
def test_under_arrivals_without_end_everybody_is_served_in_a_time_that_those_before_decide(seed: int) -> None:
    """The first in order gets on in each step, or whoever holds what it waits for: later arrivals do not count."""
    rng = random.Random(seed)
    config = random_config(rng)
    scheduler = Scheduler(config)
    alive: dict[int, int] = {}  # by id: the step by which it must have finished
    work: dict[int, int] = {}
    num_arrived = num_finished = most_waiting = 0
    for number in range(1200):
        while len(alive) < 7 and rng.random() < 0.7:
            request = random_request(rng, num_arrived)
            num_arrived += 1
            work[request.request_id] = request.num_prompt_tokens + request.max_tokens + len(request.features)
            before = sum(work[request_id] for request_id in (*alive, request.request_id))
            alive[request.request_id] = number + 2 * before + config.max_num_seqs * MAX_MODEL_LEN
            scheduler.add_request(request)
        most_waiting = max(most_waiting, scheduler.num_waiting)
        step = scheduler.schedule()
        if step is None:
            continue
        sampled = {chunk.request.request_id: rng.randrange(2) for chunk in step.chunks if chunk.sample}
        for request in scheduler.commit(step, sampled):
            del alive[request.request_id]
            num_finished += 1
        late = [request_id for request_id, end in alive.items() if end < number]
        assert not late, f"requests {late} have waited too long: {scheduler.running}"
    assert num_finished > 100
    assert most_waiting > 2
