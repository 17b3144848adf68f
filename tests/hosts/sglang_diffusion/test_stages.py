"""SGLang's diffusion stages with its own encoders on a CPU: outputs are found in the store, by other processes, too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.multimodal_gen.runtime.cache.conditioning import ConditioningCache, invalidate_conditioning_caches
from sglang.multimodal_gen.runtime.distributed import parallel_state

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from mmcached.integrations.diffusers import sglang_stages
from tests.hosts.sglang_diffusion.stages import TextStage, image_encoder, start_rank, vae
from tests.house import REPOSITORY
from tests.integration.processes import DEADLINE_S, small_config

CHILD = """
import json, sys
from pathlib import Path
from tests.hosts.sglang_diffusion.stages import TextStage, start_rank
start_rank()
from sglang.multimodal_gen.runtime.cache.conditioning import ConditioningCache
stage = TextStage(Path(sys.argv[1]))
prompts, cache = json.loads(sys.argv[2]), ConditioningCache(1 << 20)
print("ready", flush=True)
sys.stdin.readline()
parts = [[part.flatten().tolist() for part in stage.encode(prompt, cache)] for prompt in prompts]
print("ANSWER", json.dumps([parts, stage.num_computed]))
"""
NUM_ENCODERS = 2
CHILD_S = 300.0


@pytest.fixture(scope="module", autouse=True)
def rank() -> Iterator[None]:
    """Make this process a rank of a server whose plug-in is configured."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMCACHED_CONDITIONING", "set by each test")
        start_rank()
    yield
    parallel_state.destroy_model_parallel()
    parallel_state.destroy_distributed_environment()


@pytest.fixture(autouse=True)
def store_of_test(rank: None, client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MMCACHED_CONDITIONING", str(client.run_dir))
    _forget_client()
    yield
    _forget_client()


def _forget_client() -> None:
    if sglang_stages._client.cache_info().currsize:
        sglang_stages._client().close()
    sglang_stages._client.cache_clear()
    sglang_stages._conditioning.cache_clear()


def counters() -> tuple[int, int, int]:
    found = sglang_stages._conditioning()
    return found.num_calls, found.num_encoded, found.num_bypassed


def new_cache(size: int = 1 << 20) -> Any:
    return ConditioningCache(size)


@pytest.mark.parametrize("size", [1 << 20, 0], ids=["", "disabled"])
def test_a_seen_prompt_is_not_encoded(tmp_path: Path, size: int) -> None:
    """Another stage with equal weights finds it, whether SGLang's own cache is on or off."""
    first = TextStage(tmp_path / "1")
    sglang_stages._conditioning().bypass = lambda: pytest.fail("a call was bypassed")  # type: ignore[method-assign]
    wanted = first.encode("a cat", new_cache(size))
    assert (first.num_computed, counters()) == (NUM_ENCODERS, (NUM_ENCODERS, NUM_ENCODERS, 0))
    second = TextStage(tmp_path / "2")
    found = second.encode("a cat", new_cache(size))
    assert second.num_computed == 0
    assert len(found) == len(wanted) > NUM_ENCODERS
    assert all(map(torch.equal, found, wanted))
    assert not all(map(torch.equal, second.encode("a dog", new_cache(size)), wanted))
    assert second.num_computed == NUM_ENCODERS


@pytest.mark.parametrize("change", ["weights", "update", "setting", "hook", "warm-up"])
def test_what_differs_is_encoded(tmp_path: Path, change: str) -> None:
    TextStage(tmp_path / "1").encode("a cat", new_cache())
    stage, cache = TextStage(tmp_path / "2", seed=int(change == "weights")), new_cache()
    clip = stage.encoders[0]
    if change == "update":
        assert stage.encode("a cat", cache)
        assert stage.num_computed == 0
        invalidate_conditioning_caches([clip])
        with torch.no_grad():
            next(clip.parameters()).mul_(2)
    elif change == "setting":
        clip.text_model.final_layer_norm.eps = 0.1
    elif change == "hook":
        clip.register_forward_hook(lambda module, values, output: None)
    elif change == "warm-up":
        with cache.scope(refresh=True):
            stage.encode("a cat", cache)
    if change != "warm-up":
        stage.encode("a cat", cache)
    assert stage.num_computed == (1 if change in ("update", "setting", "hook") else NUM_ENCODERS)


def test_processes_at_once_encode_each_prompt_once(client: Client, tmp_path: Path) -> None:
    prompts = ["a cat", "a dog", "a fox"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": str(torch.get_num_threads())}
    commands = [
        [sys.executable, "-c", CHILD, str(tmp_path / name), json.dumps(order)]
        for name, order in (("1", prompts), ("2", prompts[::-1]))
    ]
    with ExitStack() as stack:
        children = [
            subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment, cwd=REPOSITORY)
            for command in commands
        ]
        for child in children:
            stack.callback(child.communicate)
            stack.callback(child.kill)
        for child in children:
            assert child.stdout is not None
            assert any("ready" in line for line in child.stdout)
        answers = [child.communicate("\n", timeout=CHILD_S)[0].partition("ANSWER ")[2] for child in children]
    (parts, num_first), (others, num_second) = map(json.loads, answers)
    assert parts == others[::-1]
    assert num_first + num_second == NUM_ENCODERS * len(prompts)
    stage = TextStage(tmp_path / "3")
    assert parts[0] == [part.flatten().tolist() for part in stage.encode("a cat", new_cache())]
    assert stage.num_computed == 0


def test_a_killed_store_changes_nothing(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMCACHED_CONDITIONING", str(run_dir / "other"))
    config, without = small_config(world_size=0), TextStage(tmp_path / "1")
    wanted = {prompt: without.encode(prompt, new_cache(0)) for prompt in ("a cat", "a dog")}  # no service yet
    _forget_client()  # it looks for a service again after some time only
    stage = TextStage(tmp_path / "2")
    with ChildService(run_dir / "other", config, tmp_path / "config.json") as service:
        stage.encode("a cat", new_cache())
        os.killpg(service.process.pid, signal.SIGKILL)
        service.process.wait(DEADLINE_S)
        for prompt, parts in wanted.items():
            assert all(map(torch.equal, stage.encode(prompt, new_cache()), parts))
    assert counters()[2] == 0
    with ChildService(run_dir / "other", config, tmp_path / "again.json"):
        _forget_client()
        assert all(map(torch.equal, TextStage(tmp_path / "3").encode("a cat", new_cache()), wanted["a cat"]))
        assert counters() == (NUM_ENCODERS, 0, 0), "a restarted store has its records"


@torch.no_grad()
@pytest.mark.parametrize("kind", ["vae", "image encoder"])
def test_references_are_encoded_once(kind: str) -> None:
    pixels = torch.linspace(-1, 1, 3 * 8 * 8).view(1, 3, 8, 8)
    for num_encoded, pixel in ((1, pixels), (1, pixels), (2, pixels + 1)):
        model = vae() if kind == "vae" else image_encoder()
        encode = model.encode if kind == "vae" else model
        wanted = encode(pixel)
        with new_cache().scope():
            found = encode(pixel)
        assert type(found) is type(wanted)
        assert counters()[1:] == (num_encoded, 0)
        if kind == "vae":
            assert type(found.latent_dist) is type(wanted.latent_dist)
            assert torch.equal(found.latent_dist.mean, wanted.latent_dist.mean)
            assert torch.equal(found.latent_dist.std, wanted.latent_dist.std)
        else:
            assert torch.equal(found.last_hidden_state, wanted.last_hidden_state)
            assert found.hidden_states is None


@pytest.mark.parametrize("asked", [object(), float("nan"), torch.ones(2).to_sparse()], ids=["object", "nan", "sparse"])
def test_unknown_arguments_are_bypassed(tmp_path: Path, asked: Any) -> None:
    model = TextStage(tmp_path / "1").encoders[0]
    conditioning = sglang_stages._conditioning()
    assert conditioning.of_call(lambda: "computed", model, None, ("forward", (asked,), {})) == "computed"
    assert counters() == (0, 0, 1)


@torch.no_grad()
@pytest.mark.parametrize("output", [object(), "no tensor", {"states": torch.full((2,), torch.inf)}])
def test_other_outputs_are_not_shared(tmp_path: Path, output: Any) -> None:
    model = TextStage(tmp_path / "1").encoders[0]
    conditioning = sglang_stages._conditioning()
    for _ in range(2):
        found = conditioning.of_call(lambda: output, model, None, ("forward", (1,), {}))
        assert found is output or torch.equal(found["states"], output["states"])
    assert conditioning._client.keys("conditioning/*") == []


def test_calls_of_several_ranks_are_sglangs() -> None:
    seen: list[Any] = []

    def run(*values: Any, **named: Any) -> str:
        seen.append(values)
        return "as without"

    group, compute = SimpleNamespace(world_size=2), object()
    output = sglang_stages.run_with_store(run, "cache", "model", "forward", (), {}, compute, group, nested=True)
    assert output == "as without"
    assert seen == [("cache", "model", "forward", (), {}, compute, group)]
