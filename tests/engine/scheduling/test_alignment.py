"""Of a floating-point model, chunks begin and end at fixed places, and only whole chunks of prompts are shared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest

from mmcached.engine import Request, ScheduledStep, Scheduler
from mmcached.wire.messages.parts import Feature
from mmcached.wire.model_config import ModelConfig
from tests.cache.checkpoints.folders import GEMMA, LLAMA, write
from tests.engine.builders import generate, image
from tests.engine.schedulers import schedule, scheduler_with

CHUNK = 64
Spans = list[tuple[int, int, int]]


@pytest.fixture
def model(tmp_path: Path) -> ModelConfig:
    return ModelConfig(kind="hf", path=str(write(tmp_path, LLAMA)), chunk_tokens=CHUNK)


def spans(step: ScheduledStep) -> Spans:
    """Return request, start and end of each chunk."""
    return [(chunk.request.request_id, chunk.start, chunk.end) for chunk in step.chunks]


def run(scheduler: Scheduler, token_id: int = 5) -> Spans:
    step = schedule(scheduler)
    sampled = {chunk.request.request_id: token_id for chunk in step.chunks if chunk.sample}
    report = {digest: {"hidden_states": 16} for chunk in step.chunks for digest in chunk.new_hashes.block_hashes}
    scheduler.commit(step, sampled, report)
    return spans(step)


def finish(scheduler: Scheduler) -> Spans:
    found: Spans = []
    while scheduler.has_work():
        found += run(scheduler)
    return found


def random_requests(seed: int, make: Callable[[str, int, int], Feature]) -> list[Request]:
    """Return 12 prompts with up to five items each; `make` gets an item's hash, offset and size."""
    random = Random(seed)
    requests = []
    for number in range(12):
        features, offset = [], 0
        for item in range(random.randrange(1, 6)):
            offset += random.randrange(1, 40)
            size = random.choice((3, 30, 150))
            features.append(make(f"{number}-{item}", offset, size))
            offset += size
        requests.append(generate(number, offset + random.randrange(1, 50), features, max_tokens=3))
    return requests


def test_a_chunk_ends_at_a_multiple_or_with_the_prompt(model: ModelConfig) -> None:
    scheduler = scheduler_with(
        [generate(0, 40, max_tokens=2), generate(1, 300)], model=model, max_num_batched_tokens=200
    )
    assert run(scheduler) == [(0, 0, 40), (1, 0, 128)]  # not 160
    assert run(scheduler) == [(0, 40, 41), (1, 128, 300)]


def test_a_prompt_waits_if_no_whole_chunk_is_left_of_the_step(model: ModelConfig) -> None:
    scheduler = scheduler_with([generate(0, 100), generate(1, 300)], model=model, max_num_batched_tokens=128)
    assert [run(scheduler), run(scheduler)] == [[(0, 0, 100)], [(1, 0, 128)]]


def test_a_hit_is_used_up_to_a_multiple(model: ModelConfig) -> None:
    scheduler = scheduler_with([generate(0, list(range(300)))], model=model)
    finish(scheduler)
    for length, start in ((300, 256), (256, 192), (257, 256), (200, 192), (63, 0)):
        request = generate(length, list(range(length)))
        scheduler.add_request(request)
        assert finish(scheduler) == [(length, start, length)]
        assert request.num_cached_tokens == start


def test_nothing_of_an_unfinished_chunk_or_an_output_is_shared(model: ModelConfig) -> None:
    first = generate(0, list(range(1000, 1100)), max_tokens=90)
    scheduler = scheduler_with([first], model=model)
    finish(scheduler)
    assert first.num_tokens == 190
    scheduler.add_request(generate(1, [*first.token_ids, 7]))
    assert finish(scheduler) == [(1, 64, 191)]
    scheduler.add_request(generate(2, [*first.token_ids, 7]))
    assert finish(scheduler) == [(2, 128, 191)]  # the prompt of the second request


def test_a_request_that_starts_over_takes_no_hit_for_its_output(model: ModelConfig) -> None:
    request = generate(0, list(range(1000, 1100)), max_tokens=90)
    scheduler = scheduler_with([request], model=model)
    for _ in range(80):
        run(scheduler)
    scheduler.add_request(generate(1, [*request.token_ids, 7]))  # has the output of the first as its prompt
    run(scheduler)
    step = schedule(scheduler)
    scheduler.withdraw(step)
    assert spans(schedule(scheduler)) == [(0, 64, request.num_tokens)]


def test_hashes_that_came_with_a_request_are_cut(model: ModelConfig) -> None:
    scheduler = scheduler_with(model=model)
    request = Request(0, "generate", range(100), [], max_tokens=1, block_hashes=[bytes([i]) * 32 for i in range(6)])
    scheduler.add_request(request)
    assert request.block_hashes == [bytes([i]) * 32 for i in range(4)]


@pytest.mark.parametrize("seed", range(8))
def test_a_chunk_waits_for_all_its_items_and_gets_them_in_the_end(model: ModelConfig, seed: int) -> None:
    requests = random_requests(seed, image)
    model = msgspec.structs.replace(model, max_patches_per_image=150)
    scheduler = scheduler_with(requests, model=model, encoder_cache_size=1, max_num_encoder_input_tokens=1)
    ends = {request.request_id: request.num_prompt_tokens for request in requests}
    for number, start, end in finish(scheduler):
        assert start % CHUNK == 0 or start >= ends[number]
        assert end % CHUNK == 0 or end >= ends[number]
    assert all(request.is_finished for request in requests)


def test_requests_that_hold_divided_items_do_not_wait_for_each_other(model: ModelConfig) -> None:
    model = msgspec.structs.replace(model, max_patches_per_image=100)
    requests = [
        generate(number, 400, [image(f"{number}-{i}", offset, 100) for i, offset in enumerate((20, 130, 250))])
        for number in range(3)
    ]
    scheduler = scheduler_with(
        requests,
        model=model,
        encoder_cache_size=1,
        max_num_batched_tokens=3 * CHUNK,
        long_prefill_token_threshold=CHUNK,
    )
    finish(scheduler)
    assert scheduler.num_preemptions
    assert all(request.is_finished for request in requests)


# ---- pictures that no chunk may divide


@pytest.fixture
def whole(tmp_path: Path) -> ModelConfig:
    folder = write(tmp_path, GEMMA)
    return ModelConfig(kind="hf", path=str(folder), chunk_tokens=CHUNK, max_patches_per_image=150)


def picture(mm_hash: str, offset: int, size: int) -> Feature:
    return msgspec.structs.replace(image(mm_hash, offset, size), num_bound=offset % CHUNK)


def test_a_chunk_goes_on_to_the_end_of_its_picture(whole: ModelConfig) -> None:
    request = generate(0, 400, [picture("a", 50, 30), picture("b", 100, 28), picture("c", 190, 150)])
    scheduler = scheduler_with([request], model=whole, max_num_batched_tokens=CHUNK + 150)
    # Multiples are 64, in the first picture; 128, where the second one ends; 192, 256 and 320, in the third.
    assert finish(scheduler) == [(0, 0, 128), (0, 128, 340), (0, 340, 400)]
    few = generate(1, 200, [picture("d", 50, 30)])
    scheduler.add_request(few)
    scheduler.add_request(generate(2, 100))
    assert run(scheduler) == [(1, 0, 200)]


def test_a_picture_that_does_not_fit_waits_for_the_next_step(whole: ModelConfig) -> None:
    requests = [generate(0, 140), generate(1, 400, [picture("a", 50, 30)])]
    scheduler = scheduler_with(requests, model=whole, max_num_batched_tokens=CHUNK + 150)
    assert run(scheduler) == [(0, 0, 140)]  # 74 tokens are left, the first chunk has 80
    assert run(scheduler) == [(1, 0, 192)]


def test_a_hit_is_used_up_to_a_multiple_outside_of_pictures(whole: ModelConfig) -> None:
    features = [picture("a", 50, 30), picture("b", 190, 150)]
    first = generate(0, list(range(400)), features)
    scheduler = scheduler_with([first], model=whole, max_num_batched_tokens=CHUNK + 150)
    finish(scheduler)
    for length, start in ((400, 384), (384, 128), (350, 128), (182, 128), (90, 0)):
        request = generate(length, first.token_ids[:length], [each for each in features if each.offset < length])
        scheduler.add_request(request)
        finish(scheduler)
        assert request.num_cached_tokens == start


def test_a_chunk_without_the_picture_of_another_one_is_other_content(whole: ModelConfig) -> None:
    first = generate(0, 200, [picture("a", 50, 30)])
    plain = generate(1, [*first.token_ids[:50], *range(150)])
    scheduler = scheduler_with([first, plain], model=whole)
    requests = {chunk.request.request_id: chunk.new_hashes.block_hashes for chunk in schedule(scheduler).chunks}
    assert not {*requests[0]} & {*requests[1]}


@pytest.mark.parametrize("seed", range(8))
def test_chunks_with_whole_pictures_are_computed_in_the_end(whole: ModelConfig, seed: int) -> None:
    requests = random_requests(seed, picture)
    scheduler = scheduler_with(
        requests,
        model=whole,
        encoder_cache_size=1,
        max_num_encoder_input_tokens=1,
        max_num_batched_tokens=CHUNK + 150,
    )
    by_number = {request.request_id: request for request in requests}
    for number, _, end in finish(scheduler):
        assert not any(each.offset < end < each.offset + each.length for each in by_number[number].features)
    assert all(request.is_finished for request in requests)
