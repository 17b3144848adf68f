"""The mode `packed`: the tokens of `generate`, in any mixture of prompts and output tokens, and one call per step."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest
import torch

from mmcached.wire.config import ServiceConfig
from tests.hosts.transformers.language_models import FAMILIES, alone, loaded, save
from tests.hosts.transformers.local_engine import LocalEngine
from tests.hosts.transformers.test_language import config_of, prompt_of
from tests.hosts.transformers.test_language_pictures import FAMILIES as PICTURE_FAMILIES
from tests.hosts.transformers.test_language_pictures import World, asks

pytestmark = pytest.mark.usefixtures("one_thread")

MAX_ERROR = 1e-4


def packed(config: ServiceConfig) -> ServiceConfig:
    return msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, mode="packed"))


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_generate_beside_others_and_after_starting_over(family: str, tmp_path: Path) -> None:
    folder = save(family, tmp_path)
    random = Random(family)
    shared = prompt_of(random, 70)
    prompts = [shared[: random.randrange(71)] + prompt_of(random, random.randrange(1, 90)) for _ in range(12)]
    engine = LocalEngine(packed(config_of(folder, num_kv_blocks=33, max_num_batched_tokens=37)))
    requests = [engine.add(prompt, 25, rows=["hidden_states"]) for prompt in prompts]
    for _ in range(9):
        engine.step()
    engine.preempt()
    engine.run()
    assert engine.scheduler.num_preemptions
    assert any(request.num_cached_tokens for request in requests)
    for prompt, request in zip(prompts, requests, strict=True):
        assert request.output_token_ids == alone(folder, prompt, 25)
        with torch.no_grad():
            wanted = loaded(folder).model(torch.tensor([request.token_ids[:-1]])).last_hidden_state[0]
        assert (engine.rows_of(request)["hidden_states"] - wanted).abs().max() < MAX_ERROR


@pytest.mark.parametrize("family", [family for family in PICTURE_FAMILIES if not family.startswith("gemma3")])
def test_chunks_divide_pictures_anywhere(family: str, tmp_path: Path) -> None:
    world = World(tmp_path, family)
    engine = LocalEngine(packed(world.config(max_num_batched_tokens=37)))
    asked = asks(Random(family))
    requests = [engine.add(each.prompt, 8, pictures=world.pictures(each.numbers)) for each in asked]
    engine.run()
    assert any(request.num_cached_tokens for request in requests)
    for each, request in zip(asked, requests, strict=True):
        assert request.output_token_ids == world.alone(each, 8)[0]


def test_a_step_is_one_call_of_the_model(tmp_path: Path) -> None:
    engine = LocalEngine(packed(config_of(save("qwen3", tmp_path))))
    calls: list[int] = []
    engine.runner._model.decoder._text.register_forward_hook(  # type: ignore[attr-defined]
        lambda *_: calls.append(1)
    )
    random = Random(1)
    for num_tokens in (5, 40, 90):
        engine.add(prompt_of(random, num_tokens), 8)
    num_steps = 0
    while engine.step():
        num_steps += 1
    assert len(calls) == num_steps < 3 * 8


def test_a_prefix_is_found_at_any_block_also_that_of_an_answer(tmp_path: Path) -> None:
    engine = LocalEngine(packed(config_of(save("llama", tmp_path))))
    turn = engine.generate(prompt_of(Random(2), 50), 31)
    assert engine.generate([*turn.token_ids, 7, 8], 1).num_cached_tokens == 80
