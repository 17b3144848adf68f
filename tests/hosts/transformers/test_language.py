"""A checkpoint behind `generate` computes what Transformers computes, and the same bits whatever was cached."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import torch

from mmcached.cache.checkpoints.language import Language
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages.parts import Sampling
from mmcached.wire.messages.worker import RunChunk
from mmcached.wire.model_config import ModelConfig
from mmcached.worker.language.sampler import choose, processed
from tests.hosts.transformers.language_models import FAMILIES, VOCABULARY, alone, loaded, save
from tests.hosts.transformers.local_engine import LocalEngine

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
MODULES = ("layers.1.mlp", "layers.0.self_attn.k_proj", "layers.2.mlp.up_proj")
ROWS = ("hidden_states", "hidden_states.layer_0", "hidden_states.layer_2", *MODULES)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def config_of(folder: Path, **settings: Any) -> ServiceConfig:
    model = ModelConfig(
        kind="hf", path=str(folder), chunk_tokens=32, num_layer_outputs=3, row_modules=",".join(MODULES)
    )
    defaults = {"world_size": 1, "num_kv_blocks": 600, "max_model_len": 512, "max_num_batched_tokens": 96}
    return ServiceConfig(model=model, **defaults | settings)


def prompt_of(random: Random, num_tokens: int) -> list[int]:
    return [random.randrange(3, VOCABULARY) for _ in range(num_tokens)]


def assert_same(engine: LocalEngine, request: Any, other: LocalEngine, other_request: Any) -> None:
    assert request.output_token_ids == other_request.output_token_ids
    pairs = zip(engine.logits[request.request_id], other.logits[other_request.request_id], strict=True)
    assert all(torch.equal(first, second) for first, second in pairs)
    rows, other_rows = engine.rows_of(request), other.rows_of(other_request)
    assert rows.keys() == other_rows.keys()
    assert all(torch.equal(rows[key], other_rows[key]) for key in rows)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_generate_and_bits_do_not_depend_on_what_is_cached(
    family: str, dtype: str, tmp_path: Path
) -> None:
    folder = save(family, tmp_path, DTYPES[dtype])
    random = Random(f"{family} {dtype}")
    cached, plain = LocalEngine(config_of(folder)), LocalEngine(config_of(folder, enable_prefix_caching=False))
    shared = prompt_of(random, 80)
    for num_more in (1, 17, 47, 48, 49, 130):
        prompt = shared + prompt_of(random, num_more)
        first, second = cached.generate(prompt, 6, rows=ROWS), plain.generate(prompt, 6, rows=ROWS)
        assert_same(cached, first, plain, second)
        assert first.num_cached_tokens == (64 if num_more > 1 else 0)
        assert second.num_cached_tokens == 0
        if dtype == "fp32":  # of rounded logits the largest is often one of two that are equal
            assert first.output_token_ids == alone(folder, prompt, 6)


def test_output_tokens_are_never_a_cached_prefix(tmp_path: Path) -> None:
    folder = save("llama", tmp_path)
    engine, plain = LocalEngine(config_of(folder)), LocalEngine(config_of(folder, enable_prefix_caching=False))
    prompt = prompt_of(Random(5), 50)
    turn = engine.generate(prompt, 60, rows=ROWS)
    assert turn.num_tokens > 96
    follow_up = [*turn.token_ids, 7, 8, 9]
    second, alike = engine.generate(follow_up, 5, rows=ROWS), plain.generate(follow_up, 5, rows=ROWS)
    assert second.num_cached_tokens == 32  # the whole chunks of the first prompt
    assert_same(engine, second, plain, alike)


@pytest.mark.parametrize("family", ["qwen2", "gemma3"])
def test_bits_are_the_same_beside_others_and_after_starting_over(family: str, tmp_path: Path) -> None:
    folder = save(family, tmp_path, torch.bfloat16)
    random = Random(family)
    shared = prompt_of(random, 70)
    prompts = [shared[: random.randrange(71)] + prompt_of(random, random.randrange(1, 90)) for _ in range(10)]
    crowd, plain = LocalEngine(config_of(folder, num_kv_blocks=33)), LocalEngine(config_of(folder))
    requests = [crowd.add(prompt, 25, rows=ROWS) for prompt in prompts]
    for num_steps in (3, 4, 5):
        for _ in range(num_steps):
            crowd.step()
        crowd.preempt()
    crowd.run()
    assert crowd.scheduler.num_preemptions  # for lack of blocks
    for prompt, request in zip(prompts, requests, strict=True):
        alike = plain.add(prompt, 25, rows=ROWS)
        alike.skip_reading_prefix_cache = True
        plain.run()
        assert request.output_token_ids == alike.output_token_ids
        rows, other_rows = crowd.rows_of(request), plain.rows_of(alike)
        assert all(torch.equal(rows[key], other_rows[key]) for key in ROWS)


def test_a_prefix_that_is_found_is_not_computed(tmp_path: Path) -> None:
    engine = LocalEngine(config_of(save("qwen3", tmp_path)))
    prompt = prompt_of(Random(9), 160)
    engine.generate(prompt, 1)
    before = engine.num_computed
    assert engine.generate(prompt, 1).num_cached_tokens == 128
    assert engine.num_computed - before == 32


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_modules_are_their_outputs_in_transformers(family: str, tmp_path: Path) -> None:
    folder = save(family, tmp_path)
    engine, prompt = LocalEngine(config_of(folder)), prompt_of(Random(13), 70)
    found = engine.rows_of(engine.generate(prompt, 1, rows=ROWS))
    decoder, wanted = loaded(folder).model, {}
    for name in MODULES:
        decoder.get_submodule(name).register_forward_hook(
            lambda _module, _inputs, output, name=name: wanted.update({name: output[0]})
        )
    with torch.no_grad():
        decoder(torch.tensor([prompt]))
    forms = Language.of(config_of(folder)).row_forms
    assert [(form.name, form.dtype, form.shape) for form in forms if form.name in ROWS] == [
        (key, "float32", (-1, found[key].shape[1])) for key in ROWS
    ]
    for name, rows in wanted.items():
        assert torch.allclose(found[name], rows, atol=1e-4 * float(rows.abs().max()))


def test_a_seed_gives_the_same_tokens_whatever_is_cached_and_dies(tmp_path: Path) -> None:
    engine = LocalEngine(config_of(save("llama", tmp_path)))
    prompt = prompt_of(Random(11), 90)
    sampling = Sampling(temperature=1.5, top_k=60, top_p=0.95, min_p=0.001, seed=7, num_logprobs=3)
    first = engine.generate(prompt, 20, sampling=sampling)
    second = engine.add(prompt, 20, sampling=sampling)
    for _ in range(7):
        engine.step()
    engine.preempt()
    engine.run()
    assert first.output_token_ids == second.output_token_ids
    other = engine.generate(prompt, 20, sampling=msgspec.structs.replace(sampling, seed=8))
    assert other.output_token_ids != first.output_token_ids
    assert engine.logprobs[first.request_id] == engine.logprobs[second.request_id]
    for token, logits, logprobs in zip(
        first.output_token_ids, engine.logits[first.request_id], engine.logprobs[first.request_id], strict=True
    ):
        wanted = logits.log_softmax(-1)
        assert [each.token_id for each in logprobs] == [token, *wanted.topk(3).indices.tolist()]
        assert [each.logprob for each in logprobs] == [float(wanted[each.token_id]) for each in logprobs]


def test_sampling_is_that_of_transformers(tmp_path: Path) -> None:
    folder = save("qwen3", tmp_path)
    engine = LocalEngine(config_of(folder))
    prompt = prompt_of(Random(12), 40)
    greedy = alone(folder, prompt, 12)
    for settings in ({"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-9}, {"temperature": 0.0}):
        sampling = Sampling(seed=1, **settings)
        assert engine.generate(prompt, 12, sampling=sampling).output_token_ids == greedy
    penalized = engine.generate(prompt, 12, sampling=Sampling(temperature=0.0, repetition_penalty=1.7))
    assert penalized.output_token_ids == alone(folder, prompt, 12, repetition_penalty=1.7) != greedy
    stopped = engine.add(prompt, 12)
    stopped.stop_token_ids = frozenset({greedy[3]})
    engine.run()
    assert stopped.output_token_ids == greedy[: greedy.index(greedy[3]) + 1]


def test_each_token_is_chosen_as_often_as_it_is_likely() -> None:
    sampling = Sampling(temperature=0.7, top_k=4, seed=0)
    logits = torch.linspace(0.0, 2.0, 8)
    wanted = processed(logits, sampling, []).softmax(-1)
    counts = torch.zeros(8)
    for position in range(4000):
        chunk = RunChunk(0, [5], position, [], [], True, [], 0, 0, [], sampling=sampling)
        counts[choose(logits, chunk).token_id] += 1
    assert counts[:4].sum() == 0
    assert (counts / 4000 - wanted).abs().max() < 0.03
