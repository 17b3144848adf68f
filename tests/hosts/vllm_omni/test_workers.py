"""vllm-omni's diffusion workers, with its pipeline of Flux's kind on a CPU: each prompt is encoded once per host."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from tests.hosts.flux_checkpoint import write_flux
from tests.hosts.vllm_omni.worker_child import worker
from tests.integration.processes import DEADLINE_S, small_config

NUM_ENCODERS = 2
"""Calls of encoders for a picture: CLIP of Transformers, and vllm-omni's T5 of vLLM's layers."""
PROMPTS = ("a cat", "a dog", "a fox")


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_flux(tmp_path_factory.mktemp("flux") / "pipeline")


@pytest.fixture(scope="module")
def wanted(flux: Path) -> dict[tuple[str, int], list[float]]:
    """Pictures by prompt and seed, made without a service."""
    with worker(flux) as child:
        answers = {(prompt, seed): child.ask(prompt, seed) for prompt in PROMPTS for seed in (0, 1)}
    assert all(answer.num_calls == 0 for answer in answers.values())
    assert len({tuple(answer.pixels) for answer in answers.values()}) == len(answers)
    return {asked: answer.pixels for asked, answer in answers.items()}


def test_workers_at_once_encode_each_prompt_once(
    client: Client, flux: Path, wanted: dict[tuple[str, int], list[float]]
) -> None:
    with worker(flux, client.run_dir) as first, worker(flux, client.run_dir) as second:
        for prompt in PROMPTS:
            first.send(prompt, 0)
            second.send(prompt, 1)
        for prompt in PROMPTS:
            answers = first.receive(), second.receive()
            assert [answer.pixels for answer in answers] == [wanted[prompt, 0], wanted[prompt, 1]]
        assert sum(answer.num_encoded for answer in answers) == NUM_ENCODERS * len(PROMPTS)
        assert [answer.num_calls for answer in answers] == [NUM_ENCODERS * len(PROMPTS)] * 2
        assert [answer.num_bypassed for answer in answers] == [0, 0]


def test_a_store_killed_between_prompts_changes_nothing(
    run_dir: Path, tmp_path: Path, flux: Path, wanted: dict[tuple[str, int], list[float]]
) -> None:
    config = small_config(world_size=0)
    with ExitStack() as stack:
        service = stack.enter_context(ChildService(run_dir, config, tmp_path / "config.json"))
        child = stack.enter_context(worker(flux, run_dir))
        assert child.ask("a cat").pixels == wanted["a cat", 0]
        os.killpg(service.process.pid, signal.SIGKILL)
        service.process.wait(DEADLINE_S)
        for prompt in ("a cat", "a dog"):
            answer = child.ask(prompt)
            assert answer.pixels == wanted[prompt, 0]
        assert answer.num_encoded >= 2 * NUM_ENCODERS, "memory that is still mapped may be read"
        assert answer.num_bypassed == 0
        with ChildService(run_dir, config, tmp_path / "again.json"):
            assert child.ask("a fox").pixels == wanted["a fox", 0]


def test_other_weights_are_encoded(client: Client, flux: Path, tmp_path: Path) -> None:
    other = write_flux(tmp_path / "other", seed=1)
    with worker(flux, client.run_dir) as first, worker(other, client.run_dir) as second, worker(other) as without:
        pixels = first.ask("a cat").pixels
        answer = second.ask("a cat")
        assert answer.num_encoded == NUM_ENCODERS
        assert answer.pixels == without.ask("a cat").pixels != pixels
