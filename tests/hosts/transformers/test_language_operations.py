"""A service with a checkpoint in operation: flush, new epoch, ranks, rows through the store, figures, and its end."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
import torch

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client, Generation, RowsWanted
from mmcached.wire.errors import MmcachedError
from mmcached.wire.limits import LimitsConfig
from tests.hosts.transformers.language_models import alone, save
from tests.hosts.transformers.test_language import prompt_of
from tests.hosts.transformers.test_language_service import RESTART_S, config_of
from tests.integration.processes import DEADLINE_S

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = ["hidden_states", "layers.1.mlp.up_proj"]
NUM_TOKENS = 12


def ask(client: Client, prompt: Sequence[int]) -> Generation:
    return client.generate(prompt, max_tokens=NUM_TOKENS, hidden_states=RowsWanted(ROWS))


def assert_same(one: Generation, other: Generation) -> None:
    assert one.tokens == other.tokens
    assert all(torch.equal(one.rows[key].tensor, other.rows[key].tensor) for key in ROWS)


@pytest.mark.parametrize("mode", ["aligned", "packed"])
def test_what_is_dropped_is_computed_again_by_two_ranks(run_dir: Path, tmp_path: Path, mode: str) -> None:
    folder, prompt = save("qwen3", tmp_path / "checkpoint"), prompt_of(Random(1), 150)
    config = config_of(
        folder,
        row_modules=ROWS[1],
        mode=mode,
        world_size=2,
        debug_check_workers=True,
        limits=LimitsConfig(max_inline_output_kb=0),  # rows come through the store
    )
    with (
        ChildService(run_dir, config, tmp_path / "config.json"),
        Client(run_dir, timeout_s=RESTART_S) as client,
    ):
        (before,) = client.stats().engines
        first = ask(client, prompt)
        assert first.tokens == alone(folder, prompt, NUM_TOKENS)
        assert [first.rows[key].tensor.shape[1] for key in ROWS] == [64, 96]
        for drop in (client.flush, client.invalidate):
            known = ask(client, prompt)
            assert known.num_cached_tokens == (128 if mode == "aligned" else 144)
            drop()
            again = ask(client, prompt)
            assert again.num_cached_tokens == 0
            assert_same(again, first)
            if mode == "aligned":
                assert_same(known, first)
        (engine,) = client.stats().engines
        assert engine.kv.hits == 2 * known.num_cached_tokens
        assert engine.workers[0].prefix_row_hits == engine.kv.hits * len(ROWS)
        num_computed = 5 * (len(prompt) + len(first.tokens) - 1) - engine.kv.hits
        for worker, former in zip(engine.workers, before.workers, strict=True):
            assert worker.tokens_computed - former.tokens_computed == num_computed
        assert (engine.steps_failed, engine.faults, engine.leases_held) == (0, 0, 0)


def test_a_new_epoch_and_the_end_of_the_service_let_a_stream_end(run_dir: Path, tmp_path: Path) -> None:
    folder, prompt = save("llama", tmp_path / "checkpoint", torch.bfloat16), prompt_of(Random(2), 100)
    config = config_of(folder, drain_timeout_s=DEADLINE_S)
    with (
        ChildService(run_dir, config, tmp_path / "config.json") as service,
        Client(run_dir, timeout_s=RESTART_S) as client,
        Client(run_dir, timeout_s=RESTART_S) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        wanted = client.generate(prompt, max_tokens=500)
        stream = client.generate_stream(prompt, max_tokens=500)
        tokens = list(next(stream))  # type: ignore[arg-type]  # the first piece is tokens
        other.invalidate()
        assert other.generate(prompt, max_tokens=1).num_cached_tokens == 0
        *pieces, last = stream
        assert [*tokens, *(token for piece in pieces if isinstance(piece, list) for token in piece)] == wanted.tokens
        stream = client.generate_stream(prompt, max_tokens=500)
        tokens = list(next(stream))  # type: ignore[arg-type]
        service.process.send_signal(signal.SIGTERM)
        ended = pool.submit(service.process.wait, DEADLINE_S)
        *pieces, last = stream
        assert isinstance(last, Generation)
        assert last.tokens == wanted.tokens
        with pytest.raises(MmcachedError) as caught:
            other.generate(prompt, max_tokens=1, timeout_s=1.0)
        assert caught.value.retryable
        assert ended.result() == 0
