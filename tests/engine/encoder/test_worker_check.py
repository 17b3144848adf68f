"""Books and encoder caches compared: what is listed must be held, what was told must be gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mmcached.engine.encoder.worker_check import MAX_NAMED, check_encoder_caches
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import InvariantError
from mmcached.wire.messages import frontend_from_engines as from_engine
from tests.clock import Clock
from tests.engine.fake_peers import Bench

CONFIG = ServiceConfig(max_model_len=64, num_kv_blocks=32, debug_check_workers=True)
KEY = "m" * 64


def test_ranks_may_hold_what_lingers_and_must_hold_what_is_ready() -> None:
    check_encoder_caches({"a"}, {"old"}, {0: ["a"], 1: ["old", "a"]}, step=3)
    check_encoder_caches(set(), set(), {0: []}, step=3)


@pytest.mark.parametrize(
    ("held", "lacking", "surplus"),
    [(["old"], ["a"], []), (["a", "b"], [], ["b"]), (["b", "c"], ["a"], ["b", "c"]), ([], ["a"], [])],
)
def test_a_difference_names_step_rank_and_keys(held: list[str], lacking: list[str], surplus: list[str]) -> None:
    with pytest.raises(InvariantError, match="step 3: rank 1 lacks") as caught:
        check_encoder_caches({"a"}, {"old"}, {1: held, 0: ["a"]}, step=3)
    assert caught.value.details == {"step": 3, "rank": 1, "lacking": lacking, "surplus": surplus}


def test_silence_is_a_difference_and_the_error_stays_short() -> None:
    with pytest.raises(InvariantError, match="rank 0 has not sent"):
        check_encoder_caches(set(), set(), {0: None}, step=3)
    with pytest.raises(InvariantError, match="lacks 100 listed encoder outputs") as caught:
        check_encoder_caches({f"{index:03d}" for index in range(100)}, set(), {0: []}, step=3)
    assert caught.value.details["lacking"] == [f"{index:03d}" for index in range(MAX_NAMED)]


@pytest.fixture
def bench(run_dir: Path) -> Iterator[Bench]:
    with Bench(run_dir, CONFIG, Clock()) as bench:
        bench.connect()
        yield bench


def run_step(bench: Bench, *encoder_keys: list[str] | None) -> None:
    """Let each rank run the next step, and say that it holds these keys."""
    for rank, keys in enumerate(encoder_keys):
        output = bench.workers[rank].output(bench.plan(rank))
        bench.workers[rank].channel.send(msgspec.structs.replace(output, encoder_keys=keys))


def test_engine_goes_on_with_workers_that_hold_what_it_lists(bench: Bench) -> None:
    bench.add(1, bench.put_item("a"))
    run_step(bench, [KEY], [KEY])
    bench.expect(from_engine.RequestGenerated)
    bench.add(2)
    run_step(bench, [KEY], [KEY])
    assert bench.expect(from_engine.RequestGenerated).request_id == 2


@pytest.mark.parametrize("keys", [([KEY], []), ([KEY], [KEY, "more"]), ([KEY], None)])
def test_engine_ends_with_a_worker_that_differs_and_answers_nothing(
    bench: Bench, keys: tuple[list[str], list[str] | None]
) -> None:
    bench.add(1, bench.put_item("a"))
    run_step(bench, *keys)
    with pytest.raises(InvariantError, match="rank 1"):
        bench.expect(from_engine.RequestGenerated)
    assert not [message for message, _ in bench.received if isinstance(message, from_engine.RequestGenerated)]
