"""Caches on, off, under pressure, in small chunks: the same tokens, embeddings and hidden states, bit for bit."""

from __future__ import annotations

import asyncio
from functools import cache
from itertools import product
from pathlib import Path

import msgspec
import pytest

from mmcached.cli.demo.run import all_caches_off
from mmcached.client import Client
from mmcached.wire.config import ServiceConfig
from mmcached.wire.stats import ServiceStats
from tests.integration.local_service import LocalService, scratch_service
from tests.integration.processes import eventually, leases_of, small_config
from tests.integration.workloads import Answer, Ask, assert_same, play, random_rounds


def base(**changes: object) -> ServiceConfig:
    return small_config(**({"max_model_len": 512, "num_kv_blocks": 256} | changes))


MODES: dict[str, dict[str, object]] = {
    "off": {"mm_processor_cache_gb": 0.0},
    "processor_only": {"mm_processor_cache_type": "processor_only"},
    "lru": {"mm_processor_cache_type": "lru"},
    "shm": {"mm_processor_cache_type": "shm"},
}
POOLS: dict[str, dict[str, object]] = {
    "roomy": {},
    "preempting": {"max_model_len": 256, "block_size": 4, "num_kv_blocks": 66},
}
STEPS: dict[str, dict[str, object]] = {
    "one step": {"max_num_batched_tokens": 4096, "max_num_encoder_input_tokens": 4096},
    "chunked": {"max_num_batched_tokens": 29, "max_num_encoder_input_tokens": 29},
}

SETTINGS: dict[str, ServiceConfig] = {
    "chunks of 16": base(max_num_batched_tokens=16, max_num_encoder_input_tokens=16),
    "chunks of 67, no split items": base(max_num_batched_tokens=67, disable_chunked_mm_input=True),
    "tiny encoder cache": base(encoder_cache_size=1, max_num_batched_tokens=32),
    "no prefix cache": base(enable_prefix_caching=False),
    "no tensor prefix cache": base(enable_tensor_prefix_cache=False),
    "prefix rows of a few blocks": base(tensor_prefix_cache_gb=24 / 262_144, max_num_batched_tokens=48),
    "encoder cache per request": base(encoder_cache_scope="request", max_num_batched_tokens=32),
    "items larger than the ring takes": base(mm_processor_cache_gb=1 / 65536),
    "lru too small for two items": base(mm_processor_cache_type="lru", mm_processor_cache_gb=1 / 65536),
}


@cache
def uncached(seed: int) -> tuple[Answer, ...]:
    """The answers without any cache, one request at a time in one step each: what all others must equal."""
    config = all_caches_off(base(max_num_batched_tokens=4096, max_num_encoder_input_tokens=4096, world_size=1))
    rounds = [[ask] for asks in random_rounds(seed) for ask in asks]
    with scratch_service(config) as (service, _):
        return tuple(asyncio.run(play(service.run_dir, rounds)))


def quiet_stats(run_dir: Path) -> ServiceStats:
    """Statistics once everything that was asked is over."""

    def ask() -> ServiceStats:
        with Client(run_dir) as client:
            return client.stats()

    return eventually(ask, lambda stats: leases_of(stats) == 0 and stats.requests_open == 0, "leases at rest")


def play_twice(config: ServiceConfig, seed: int, run_dir: Path) -> ServiceStats:
    """Play a workload cold and warm, compare both with the uncached answers, and return the statistics at rest."""
    wanted = list(uncached(seed))
    rounds = random_rounds(seed)
    with LocalService(run_dir, config, saves_outputs=True) as service:
        assert_same(asyncio.run(play(run_dir, rounds)), wanted)
        assert_same(asyncio.run(play(run_dir, rounds)), wanted)
        stats = quiet_stats(run_dir)
    assert not service.errors
    assert stats.desyncs == 0
    assert stats.resends == 0
    ranks = {(rank.items_encoded + rank.items_loaded, rank.tokens_computed) for rank in stats.engines[0].workers}
    assert len(ranks) == 1, "ranks do the same work"
    return stats


SHORT = {
    ("off", 1, "preempting", "chunked"),
    ("processor_only", 2, "preempting", "chunked"),
    ("lru", 1, "preempting", "chunked"),
    ("shm", 2, "roomy", "one step"),
    ("shm", 1, "preempting", "chunked"),
    ("shm", 4, "preempting", "chunked"),
}
"""What is played outside the soak too: each mode under the hardest pressure, the ring under none and among four."""


@pytest.mark.parametrize(
    ("mode", "world_size", "pool", "steps"),
    [
        pytest.param(*world, marks=() if world in SHORT else pytest.mark.soak)
        for world in product(MODES, (1, 2, 4), POOLS, STEPS)
    ],
)
def test_every_mode_under_every_pressure(mode: str, world_size: int, pool: str, steps: str, run_dir: Path) -> None:
    settings = MODES[mode] | POOLS[pool] | STEPS[steps] | {"world_size": world_size}
    stats = play_twice(base(**settings), 1, run_dir)
    engine = stats.engines[0]
    assert engine.encoder.hits > 0
    assert engine.kv.hits > 0
    assert engine.workers[0].prefix_row_hits > 0
    assert (engine.preemptions > 0) == (pool == "preempting")
    assert (stats.processor.hits > 0) == (mode != "off")
    assert (stats.items.puts > 0) == (mode == "shm")
    copied = sum(worker.items_copied for worker in engine.workers)
    assert (copied == 0) == (mode == "shm"), "items in the ring are read in place"
    if mode == "lru":
        assert stats.processor.inline_items == stats.processor.items_processed, "an item travels once"
    if mode in ("off", "processor_only"):
        assert stats.processor.inline_items > stats.processor.queries - stats.processor.hits


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(("seed", "world_size"), [(2, 1), pytest.param(3, 2, marks=pytest.mark.soak)])
def test_caches_change_nothing(name: str, seed: int, world_size: int, run_dir: Path) -> None:
    config = msgspec.structs.replace(SETTINGS[name], world_size=world_size)
    stats = play_twice(config, seed, run_dir)
    engine, worker = stats.engines[0], stats.engines[0].workers[0]
    if name == "items larger than the ring takes":
        assert stats.processor.inline_fallbacks > 0
        assert any(each.items_copied for each in engine.workers), "whichever of them encodes it"
    if config.encoder_cache_scope == "shared" and name != "tiny encoder cache":
        assert engine.encoder.hits > 0
    assert (engine.kv.hits > 0) == config.enable_prefix_caching
    if config.enable_prefix_caching:
        assert (worker.prefix_row_hits > 0) == config.enable_tensor_prefix_cache
    assert worker.prefix_bytes <= config.tensor_prefix_cache_bytes
    assert (worker.prefix_evictions > 0) == (name == "prefix rows of a few blocks")
    assert engine.encoder.bytes_used <= min(worker.encoder_bytes, engine.encoder.bytes_total)
    assert (engine.encoder.bytes_used > 0) == (config.encoder_cache_scope == "shared")


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
