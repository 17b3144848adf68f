"""Caches on, off, under pressure, in small chunks: the same tokens, embeddings and hidden states, bit for bit."""

from __future__ import annotations

import asyncio
import tempfile
from functools import cache
from pathlib import Path

import pytest

from mmcached.cli.demo.run import all_caches_off
from mmcached.client import Client
from mmcached.wire.config import ServiceConfig
from mmcached.wire.stats import ServiceStats
from tests.integration.local_service import LocalService
from tests.integration.processes import eventually, leases_of, small_config
from tests.integration.workloads import Answer, Ask, assert_same, play, random_rounds


def base(**changes: object) -> ServiceConfig:
    return small_config(**({"max_model_len": 512, "num_kv_blocks": 256} | changes))


SETTINGS: dict[str, ServiceConfig] = {
    "one step": base(max_num_batched_tokens=4096, max_num_encoder_input_tokens=4096),
    "chunks of 16": base(max_num_batched_tokens=16, max_num_encoder_input_tokens=16),
    "chunks of 67, no split items": base(max_num_batched_tokens=67, disable_chunked_mm_input=True),
    "preemption": base(max_num_batched_tokens=48, max_model_len=256, block_size=4, num_kv_blocks=66),
    "one worker": base(world_size=1),
    "tiny encoder cache": base(encoder_cache_size=1, max_num_batched_tokens=32),
    "no ring": base(mm_processor_cache_gb=0.0),
    "no prefix cache": base(enable_prefix_caching=False),
    "no tensor prefix cache": base(enable_tensor_prefix_cache=False),
    "encoder cache per request": base(encoder_cache_scope="request", max_num_batched_tokens=32),
}


@cache
def uncached(seed: int) -> tuple[Answer, ...]:
    """The answers without any cache, one request at a time in one step each: what all others must equal."""
    config = all_caches_off(base(max_num_batched_tokens=4096, max_num_encoder_input_tokens=4096, world_size=1))
    rounds = [[ask] for asks in random_rounds(seed) for ask in asks]
    with tempfile.TemporaryDirectory(prefix="mmc-", dir="/tmp") as scratch, LocalService(Path(scratch), config):
        return tuple(asyncio.run(play(Path(scratch), rounds)))


def quiet_stats(run_dir: Path) -> ServiceStats:
    """Statistics once everything that was asked is over."""

    def ask() -> ServiceStats:
        with Client(run_dir) as client:
            return client.stats()

    return eventually(ask, lambda stats: leases_of(stats) == 0 and stats.requests_open == 0, "leases at rest")


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("seed", [1, 2])
def test_caches_change_nothing(name: str, seed: int, run_dir: Path) -> None:
    wanted = list(uncached(seed))
    rounds = random_rounds(seed)
    with LocalService(run_dir, SETTINGS[name]) as service:
        assert_same(asyncio.run(play(run_dir, rounds)), wanted)
        # Everything is warm now: the same again must come from the caches, and be the same.
        assert_same(asyncio.run(play(run_dir, rounds)), wanted)
        stats = quiet_stats(run_dir)
    assert not service.errors
    engine, worker = stats.engines[0], stats.engines[0].workers[0]
    config = service.config
    if config.mm_processor_cache_gb:
        assert stats.processor.hits > 0
        assert stats.ring.grants > 0
        assert [w.bytes_copied for w in engine.workers] == [0] * config.world_size, (
            "items in the ring are read in place"
        )
    else:
        assert stats.processor.queries == 0
        assert stats.processor.inline_items > 0
    if config.encoder_cache_scope == "shared" and name != "tiny encoder cache":
        assert engine.encoder.hits > 0
    if config.enable_prefix_caching:
        assert engine.kv.hits > 0
        if config.enable_tensor_prefix_cache:
            assert worker.prefix_row_hits > 0
    if name == "preemption":
        assert engine.preemptions > 0
    assert len({(w.items_encoded, w.tokens_computed) for w in engine.workers}) == 1, "ranks do the same work"


def test_encoder_runs_once_for_equal_photographs_of_one_step(run_dir: Path) -> None:
    """Single flight: equal items that are asked for at once are preprocessed once and encoded once."""
    config = base(max_num_batched_tokens=4096, max_num_encoder_input_tokens=4096)
    ask = Ask("<image><image> twice the same", (1, 1), 1, False)
    with LocalService(run_dir, config):
        before = quiet_stats(run_dir)
        asyncio.run(play(run_dir, [[ask] * 6]))
        after = quiet_stats(run_dir)
    assert after.processor.items_processed - before.processor.items_processed == 1
    for old, new in zip(before.engines[0].workers, after.engines[0].workers, strict=True):
        assert new.items_encoded - old.items_encoded == 1
