"""A service whose prompts have pictures: as Transformers continues them, from several engines and after kills."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from random import Random

import pytest
import torch

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from mmcached.wire.errors import MmcachedError
from tests.hosts.transformers.test_language_pictures import Asked, World, asks
from tests.hosts.transformers.test_language_service import RESTART_S, config_of
from tests.integration.processes import role_pids

pytestmark = pytest.mark.usefixtures("one_thread")

POLICIES = {"qwen3_vl": "round_robin", "gemma3_wide": "cache_aware", "smolvlm": "round_robin"}
"""Routing policy by family."""


@pytest.mark.parametrize("family", POLICIES)
def test_two_engines_and_a_kill_change_no_bit_of_prompts_with_pictures(
    run_dir: Path, tmp_path: Path, family: str
) -> None:
    world = World(tmp_path / "checkpoint", family)
    config = config_of(
        world.folder,
        encoder={"kind": "hf", "path": str(world.folder)},
        data_parallel_size=2,
        routing_policy=POLICIES[family],
    )
    asked = asks(Random(family))

    def ask(each: Asked) -> tuple[list[int], torch.Tensor, int]:
        files, give_up = [world.files[number] for number in each.numbers], time.monotonic() + RESTART_S
        while True:
            try:
                with Client(run_dir, timeout_s=RESTART_S) as client:
                    answer = client.generate(each.prompt, files, max_tokens=8, hidden_states=True)
            except MmcachedError as error:
                if not error.retryable or time.monotonic() > give_up:
                    raise
            else:
                assert answer.hidden_states is not None
                return answer.tokens, answer.hidden_states, answer.num_cached_tokens

    with ChildService(run_dir, config, tmp_path / "config.json") as service:
        first = [ask(each) for each in asked]
        assert [tokens for tokens, _, _ in first] == [world.alone(each, 8)[0] for each in asked]
        with Client(run_dir) as client:
            workers = [engine.workers[0] for engine in client.stats().engines]
            assert sum(worker.items_encoded for worker in workers) == len(world.files)
        num_cached = 0
        for is_killed in (False, True):
            if is_killed:
                os.kill(role_pids(service.process.pid)["worker"][0], signal.SIGKILL)
            for each, (tokens, rows, _) in zip(asked + asked, first + first, strict=True):
                found_tokens, found_rows, found_cached = ask(each)
                assert found_tokens == tokens
                assert torch.equal(found_rows, rows)
                num_cached += found_cached
        assert num_cached
        with Client(run_dir) as client:
            workers = [engine.workers[0] for engine in client.stats().engines]
            assert sum(worker.items_loaded for worker in workers)
