"""`examples/tiny_engine.py`: its tokens and hidden states are those of Transformers, whatever its caches do."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from random import Random
from types import ModuleType
from typing import Any

import pytest
import torch

from mmcached.wire.config import ServiceConfig
from tests.house import REPOSITORY

FILE = REPOSITORY / "examples" / "tiny_engine.py"
IMAGE = 511
NUM_REQUESTS = 50
MAX_TOKENS = 12
DEADLINE_S = 300.0


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tiny_engine", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tiny_engine"] = module  # its dataclass looks there
    spec.loader.exec_module(module)
    return module


def alone(model: Any, prompt: list[int], pictures: list[torch.Tensor]) -> tuple[list[int], torch.Tensor]:
    """Return what Transformers generates, and the last hidden states of all tokens but the last."""
    expanded = [token for one in prompt for token in ([one] * 16 if one == IMAGE else [one])]
    inputs: dict[str, torch.Tensor] = {"input_ids": torch.tensor([expanded])}
    if pictures:
        inputs["pixel_values"] = torch.stack(pictures).to(model.dtype)
    with torch.inference_mode():
        output = model.generate(**inputs, max_new_tokens=MAX_TOKENS, do_sample=False)
        inputs["input_ids"] = output[:, :-1]
        rows = model.model(**inputs).last_hidden_state[0]
    return [int(token) for token in output[0, len(expanded) :]], rows


def test_tokens_and_rows_are_those_of_transformers(example: ModuleType) -> None:
    """50 requests with pictures, in a pool so small that some are preempted, with beginnings in common."""
    model, random = example.random_llava(), Random(1)
    generator = torch.Generator().manual_seed(2)
    pictures = [torch.rand(3, 56, 56, generator=generator) for _ in range(4)]
    begins = [[random.randrange(3, IMAGE) for _ in range(30)] for _ in range(3)]
    asks: list[tuple[list[int], list[torch.Tensor]]] = []
    for _ in range(NUM_REQUESTS):
        shown = [random.choice(pictures) for _ in range(random.choice((0, 1, 1, 2)))]
        prompt = random.choice(begins)[: random.randrange(1, 31)]
        for _ in shown:
            prompt = [*prompt, IMAGE, *(random.randrange(3, IMAGE) for _ in range(random.randrange(4)))]
        asks.append((prompt, shown))
    config = ServiceConfig(
        world_size=1,
        block_size=4,
        num_kv_blocks=64,
        max_model_len=200,
        max_num_seqs=6,
        max_num_batched_tokens=48,
        encoder_cache_size=64,
    )
    engine = example.TinyEngine(model, config)
    answers, started = [], iter(asks)
    for prompt, shown in started:
        answers.append(engine.add(prompt, shown, max_tokens=MAX_TOKENS))
        if random.random() < 0.4:
            engine.step()
    engine.run()
    for answer, (prompt, shown) in zip(answers, asks, strict=True):
        token_ids, rows = alone(model, prompt, shown)
        assert answer.token_ids == token_ids
        torch.testing.assert_close(answer.hidden_states, rows)
    assert engine.scheduler.num_preemptions > 0
    assert sum(answer.request.num_cached_tokens > 0 for answer in answers) > NUM_REQUESTS // 4
    assert engine.num_encoded < sum(len(shown) for _, shown in asks)
    assert engine.scheduler.kv_cache_manager.block_pool.num_held == 0


def test_as_a_program_it_shows_what_hits_save() -> None:
    shown = subprocess.run([sys.executable, FILE], capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    lines = re.findall(r"prefix hits (True|False): (\d+) tokens", shown.stdout)
    assert [is_on for is_on, _ in lines] == ["True", "False"]
    assert int(lines[0][1]) * 5 < int(lines[1][1])
    assert "the tokens are equal: True" in shown.stdout
