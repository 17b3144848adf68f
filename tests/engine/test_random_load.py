"""Longer random workloads than a state machine makes: dozens of requests compete for pools that hold a few of them."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from mmcached.engine import Request, Scheduler
from mmcached.engine.scheduling.block_admission import BlockAdmission
from mmcached.wire.config import ModelConfig, ServiceConfig
from mmcached.wire.vocabulary import END_TOKEN_ID
from tests.engine.builders import encode, generate, image
from tests.engine.honest_worker import HonestWorker, expected_output

MAX_MODEL_LEN = 40
SIZES = {f"i{number}": 1 + number % 5 for number in range(8)}


def random_config(rng: random.Random) -> ServiceConfig:
    block_size = rng.choice([1, 3, 4])
    return ServiceConfig(
        block_size=block_size,
        num_kv_blocks=-(-MAX_MODEL_LEN // block_size) + 1 + rng.randrange(12),
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=rng.choice([2, 4, 8]),
        max_num_batched_tokens=rng.choice([5, 8, 16, 64]),
        max_num_encoder_input_tokens=rng.choice([0, 7, 30]),
        encoder_cache_size=rng.choice([0, 6, 9, 30]),
        encoder_cache_scope=rng.choice(["shared", "request"]),
        disable_chunked_mm_input=rng.random() < 0.3,
        enable_prefix_caching=rng.random() < 0.8,
        model=ModelConfig(max_patches_per_image=max(SIZES.values())),
    )


def random_request(rng: random.Random, request_id: int) -> Request:
    items = rng.choices(sorted(SIZES), k=rng.randint(0, 4))
    if items and rng.random() < 0.2:
        return encode(request_id, *((item, SIZES[item]) for item in items))
    token_ids: list[int] = [rng.randrange(2)] * rng.randint(1, 8)
    features = []
    for item in items:
        features.append(image(item, len(token_ids), SIZES[item]))
        token_ids += [0] * SIZES[item] + [rng.randrange(2)] * rng.randrange(3)
    max_tokens = rng.randint(1, max(1, MAX_MODEL_LEN - len(token_ids)))
    return generate(
        request_id,
        token_ids,
        features,
        max_tokens=max_tokens,
        tenant=rng.choice(["", "", "x"]),
        skip_reading_prefix_cache=rng.random() < 0.2,
    )


def run_load(rng: random.Random, num_requests: int, p_mishap: float) -> Counter[str]:
    """Run a workload to its end, checking everything; return how often what happened."""
    config = random_config(rng)
    scheduler = Scheduler(config)
    cache_size = scheduler.encoder_cache_manager.cache_size
    workers = [HonestWorker(config.block_size, cache_size) for _ in range(2)]
    requests = [random_request(rng, request_id) for request_id in range(num_requests)]
    pending = list(requests)
    emitted: dict[int, list[int]] = {}
    seen: Counter[str] = Counter()
    for _ in range(200 * num_requests):
        while pending and rng.random() < 0.3:
            scheduler.add_request(pending.pop(0))
        if rng.random() < p_mishap:
            scheduler.abort(rng.randrange(num_requests))
        step = scheduler.schedule()
        assert (step is not None) == scheduler.has_work()
        if step is None:
            if not pending:
                break
            continue
        scheduler.check_integrity()
        if rng.random() < p_mishap:
            scheduler.abort(rng.choice(step.request_ids()))
        mishap = rng.random()
        if mishap < p_mishap / 4:
            seen["resets"] += 1
            scheduler.reset()
            for worker in workers:
                worker.clear()
        elif mishap < p_mishap:
            for worker in rng.sample(workers, rng.randrange(3)):
                worker.run(step)
            scheduler.withdraw(step)
            seen["withdrawals"] += 1
        else:
            sampled, other = (worker.run(step) for worker in workers)
            assert sampled == other
            for request, input_id, _ in step.emit:
                emitted.setdefault(request.request_id, []).append(input_id)
            for request in scheduler.commit(step, sampled):
                seen["finished"] += 1
                if request.kind == "generate":
                    output = expected_output(request)
                    assert request.output_token_ids == output
                    assert request.finish_reason == ("length" if output[-1] != END_TOKEN_ID else "stop")
                else:
                    assert emitted[request.request_id] == list(range(len(request.features)))
        scheduler.check_integrity()
    assert not pending
    assert all(request.is_finished for request in requests)
    assert scheduler.schedule() is None
    assert not scheduler.has_work()
    assert scheduler.kv_cache_manager.usage == 0.0
    assert scheduler.encoder_cache_manager.num_freeable_slots == cache_size
    seen["preemptions"] = scheduler.num_preemptions
    seen["prefix hits"] = scheduler.kv_cache_manager.stats().hits
    seen["encoder hits"] = scheduler.encoder_cache_manager.stats().hits
    seen["evictions"] = scheduler.encoder_cache_manager.stats().evictions
    seen["encoded"] = workers[0].num_encoded
    return seen


@pytest.mark.parametrize("admits_all", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_all_finish_with_the_right_answer(seed: int, admits_all: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is admitted: preemption puts it right."""
    if admits_all:
        monkeypatch.setattr(BlockAdmission, "is_room_for", lambda *_: True)
    rng = random.Random(seed)
    seen: Counter[str] = Counter()
    for _ in range(12):
        seen += run_load(rng, num_requests=25, p_mishap=0.0)
    assert seen["finished"] == 12 * 25
    for what in ("preemptions", "prefix hits", "encoder hits", "evictions"):
        assert seen[what] > 0, f"the workload has no {what}: it shows nothing about them"


@pytest.mark.parametrize("seed", range(6))
def test_nothing_breaks_when_steps_fail_workers_restart_and_requests_are_aborted(seed: int) -> None:
    rng = random.Random(1000 + seed)
    seen: Counter[str] = Counter()
    for _ in range(8):
        seen += run_load(rng, num_requests=25, p_mishap=0.1)
    for what in ("withdrawals", "resets", "preemptions", "finished"):
        assert seen[what] > 0, f"the workload has no {what}: it shows nothing about them"
