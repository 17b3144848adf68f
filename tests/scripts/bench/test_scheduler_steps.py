"""The steps that the benchmark of the scheduler plays are whole, alike on both sides, and leave nothing behind."""

from __future__ import annotations

import random

import pytest

from scripts.bench import scheduler
from scripts.bench import scheduler_steps as steps
from scripts.bench.sides import NUM_KV_BLOCKS, SAMPLED_TOKEN_ID, Ours, our_config


def test_in_a_whole_step_every_sixteenth_request_takes_a_block() -> None:
    played = Ours().steps(32)
    draw = random.Random(0)
    steps.start_decoding(played, 32, draw)
    for _ in range(steps.NUM_STEPS):
        num_held = played.num_held_blocks()
        step = played.schedule()
        steps.check_step(played, step, 32, played.num_held_blocks() - num_held)
        with pytest.raises(RuntimeError, match="expected"):
            steps.check_step(played, step, 31, 2)
        played.commit(step, played.results(step))
    played.end_all()
    assert not played.num_held_blocks()
    assert not played.scheduler.has_work()


def test_a_filled_pool_has_hardly_a_block_without_content() -> None:
    played = Ours().steps(steps.NUM_RUNNING)
    steps.fill(played, random.Random(0))
    assert played.scheduler.kv_cache_manager.stats().blocks_cached > 0.98 * NUM_KV_BLOCKS


def test_every_bound_on_a_step_is_about_a_row() -> None:
    rows = [row for path in steps.PATHS.values() for row in steps.measure(path, Ours(), 1)]
    assert all(any(bound.concerns(row) for row in rows) for bound in scheduler.STEP_BOUNDS)
    assert all(row.ours > 0 and row.peer_value > 0 for row in rows)


def test_without_a_peer_a_step_has_no_rows() -> None:
    assert not steps.measure(steps.PATHS["schedule"], None, 1)


@pytest.mark.parametrize("is_told", [False, True])
def test_a_turn_of_the_engine_books_an_answer_and_sends_the_next_plan(*, is_told: bool) -> None:
    engine = steps.Engine(our_config(steps.NUM_RUNNING), is_told=is_told)
    steps.start_decoding(engine.steps, 16, random.Random(0))
    engine.start()
    first = steps.read_plan(engine.plan, 16)
    engine.turn(steps.answer(first, first.step))
    second = steps.read_plan(engine.plan, 16)
    assert second.step == first.step + 1
    assert {chunk.token_ids[0] for chunk in second.chunks} == {SAMPLED_TOKEN_ID}
    assert bool(engine.told) == is_told
    with pytest.raises(RuntimeError, match="not taken"):
        engine.turn(steps.answer(second, first.step))
    with pytest.raises(RuntimeError, match="not 15 requests"):
        steps.read_plan(engine.plan, 15)
    engine.stop(steps.answer(second, second.step))
    assert not engine.steps.num_held_blocks()


def test_overhead_is_told_for_more_requests_and_longer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "RUNNING", (1, 16))
    monkeypatch.setattr(steps, "CONTEXTS", (256, 512))
    assert len(steps.overhead(1)) == 3
