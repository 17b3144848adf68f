"""A service with a checkpoint behind `generate`: prompts as text and ids, streams, rows, engines, kills, errors."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
import tokenizers
import torch

from mmcached.cache.checkpoints.language import check_model
from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client, Generation, RowsWanted, Sampling
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError, InvalidRequest, MmcachedError, ServiceUnavailable
from tests.hosts.transformers import checkpoints
from tests.hosts.transformers.checkpoints import PICTURES
from tests.hosts.transformers.language_models import VOCABULARY, alone, save, write_tokenizer
from tests.hosts.transformers.models import IMAGE
from tests.hosts.transformers.pictures_alone import PicturesAlone
from tests.hosts.transformers.test_language import prompt_of
from tests.integration.processes import role_pids

pytestmark = pytest.mark.usefixtures("one_thread")

RESTART_S = 300.0
"""A worker imports Transformers before it is ready again."""


def config_of(
    folder: Path, *, num_layer_outputs: int = 0, row_modules: str = "", mode: str = "aligned", **settings: object
) -> ServiceConfig:
    model = {"num_layer_outputs": num_layer_outputs, "row_modules": row_modules, "mode": mode}
    fields: dict[str, object] = {
        "model": {"kind": "hf", "path": str(folder), "chunk_tokens": 32, **model},
        "world_size": 1,
        "device": "cpu",
        "num_kv_blocks": 300,
        "max_model_len": 1024,
        "mm_processor_cache_gb": 1 / 64,
        "store_gb": 1 / 64,
        "mm_processor_workers": 1,
        "request_timeout_s": RESTART_S,
        "start_timeout_s": RESTART_S,
    }
    return ServiceConfig.from_fields(fields | settings)


def test_prompts_of_text_and_ids_are_continued_as_by_transformers(run_dir: Path, tmp_path: Path) -> None:
    folder = save("llama", tmp_path / "checkpoint")
    write_tokenizer(folder)
    text = "the quick brown fox jumps over the lazy dog " * 6
    token_ids = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    config = config_of(folder, num_layer_outputs=1, row_modules="layers.2.mlp.up_proj")
    with ChildService(run_dir, config, tmp_path / "config.json"), Client(run_dir, timeout_s=RESTART_S) as client:
        wanted = alone(folder, token_ids, 12)
        first = client.generate(text, max_tokens=12, hidden_states=True)
        assert first.tokens == wanted
        assert first.num_prompt_tokens == len(token_ids)
        again = client.generate(token_ids, max_tokens=12, hidden_states=True)
        assert again.tokens == wanted
        assert again.num_cached_tokens == (len(token_ids) - 1) // 32 * 32 > 0
        assert first.hidden_states is not None
        assert again.hidden_states is not None
        assert torch.equal(first.hidden_states, again.hidden_states)
        assert first.hidden_states.shape == (len(token_ids) + 11, 64)
        *pieces, end = client.generate_stream(
            token_ids, max_tokens=12, hidden_states=RowsWanted(["hidden_states.layer_0"], delivery="delta")
        )
        assert [token for piece in pieces if isinstance(piece, list) for token in piece] == wanted
        assert isinstance(end, Generation)
        assert end.tokens == wanted
        assert [(form.name, form.dtype, form.shape) for form in client.processor_info().rows] == [
            ("hidden_states", "float32", (-1, 64)),
            ("hidden_states.layer_0", "float32", (-1, 64)),
            ("layers.2.mlp.up_proj", "float32", (-1, 96)),
        ]
        of_modules = [
            client.generate(prompt, max_tokens=12, hidden_states=RowsWanted(["layers.2.mlp.up_proj"])).rows
            for prompt in (token_ids, [*token_ids[:64], 7], token_ids)
        ]
        whole, begin, again_whole = (rows["layers.2.mlp.up_proj"].tensor for rows in of_modules)
        assert whole.shape == (len(token_ids) + 11, 96)
        assert torch.equal(whole, again_whole)
        assert torch.equal(whole[:64], begin[:64])
        sampled = [
            client.generate(token_ids, max_tokens=12, sampling=Sampling(temperature=2.0, seed=seed, num_logprobs=1))
            for seed in (1, 1, 2)
        ]
        assert sampled[0].tokens == sampled[1].tokens != sampled[2].tokens
        assert [best[0].token_id for best in sampled[0].logprobs] == sampled[0].tokens
        stop = client.generate(token_ids, max_tokens=12, sampling=Sampling(temperature=0.0, stop_token_ids=[wanted[0]]))
        assert (stop.tokens, stop.finish_reason) == (wanted[:1], "stop")
        for prompt, field in (([1, VOCABULARY], "prompt[1]"), ([5] * 2000, "prompt"), ([], "prompt")):
            with pytest.raises(InvalidRequest) as caught:
                client.generate(prompt, max_tokens=2)
            assert caught.value.details["field"] == field
        with pytest.raises(InvalidRequest, match="the checkpoint takes text"):
            client.generate(token_ids, [b"a picture"])
        with pytest.raises(InvalidRequest, match=r"hidden_states.layer_0"):
            client.generate(token_ids, hidden_states=RowsWanted(["hidden_states.layer_1"]))


def test_a_generation_ends_with_the_models_last_token(run_dir: Path, tmp_path: Path) -> None:
    folder = save("qwen2", tmp_path / "checkpoint")
    random = Random(1)
    tokens = [0, 0, 0]
    while tokens[2] in tokens[:2]:
        prompt = prompt_of(random, 20)
        tokens = alone(folder, prompt, 5)
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": [{tokens[2]}, 3]}}')
    with (
        ChildService(run_dir, config_of(folder), tmp_path / "config.json"),
        Client(run_dir, timeout_s=RESTART_S) as client,
    ):
        answer = client.generate(prompt, max_tokens=5)
        assert (answer.tokens, answer.finish_reason) == (tokens[:3], "stop")
        with pytest.raises(InvalidRequest, match=r"tokenizer\.json"):
            client.generate("text", max_tokens=2)


def test_two_engines_and_kills_change_no_bit(run_dir: Path, tmp_path: Path) -> None:
    folder = save("qwen3", tmp_path / "checkpoint", torch.bfloat16)
    random = Random(2)
    shared = prompt_of(random, 100)
    prompts = [shared[: random.randrange(101)] + prompt_of(random, random.randrange(1, 60)) for _ in range(12)]
    directory = run_dir / "s"

    def ask(prompt: list[int]) -> tuple[list[int], torch.Tensor]:
        give_up = time.monotonic() + RESTART_S
        while True:
            try:
                with Client(directory) as client:
                    answer = client.generate(prompt, max_tokens=24, hidden_states=True)
            except MmcachedError as error:
                if not error.retryable or time.monotonic() > give_up:
                    raise
            else:
                assert answer.hidden_states is not None
                return answer.tokens, answer.hidden_states

    with ChildService(directory, config_of(folder, enable_prefix_caching=False), tmp_path / "config.json"):
        wanted = [ask(prompt) for prompt in prompts]
    config = config_of(folder, data_parallel_size=2)
    with ChildService(directory, config, tmp_path / "config.json") as service:
        for role in ("worker", "engine"):
            with ThreadPoolExecutor(4) as askers:
                asked = [askers.submit(ask, prompt) for prompt in prompts]
                asked[2].result()
                os.kill(role_pids(service.process.pid)[role][0], signal.SIGKILL)
                for future, (tokens, rows) in zip(asked, wanted, strict=True):
                    found_tokens, found_rows = future.result()
                    assert found_tokens == tokens
                    assert torch.equal(found_rows, rows)
        with Client(directory) as client:
            client.flush()
        assert ask(prompts[0])[0] == wanted[0][0]


def test_what_cannot_be_served_ends_the_start_with_the_reason(run_dir: Path, tmp_path: Path) -> None:
    folder = save("llama", tmp_path / "checkpoint")
    file = folder / "config.json"
    file.write_text(file.read_text().replace('"vocab_size": 512', '"vocab_size": 500'))
    log = tmp_path / "log"
    service = ChildService(run_dir, config_of(folder), tmp_path / "config.json", log_file=log)
    with pytest.raises(ServiceUnavailable), service:
        pass
    assert "model.path" in log.read_text()


def test_pictures_in_prompts_are_those_of_the_models_own_tower(run_dir: Path, tmp_path: Path) -> None:
    folder = checkpoints.save("llava", tmp_path / "checkpoint")
    random = Random(4)
    alone = PicturesAlone(folder)

    def text(num_tokens: int) -> list[int]:
        return [random.randrange(3, IMAGE) for _ in range(num_tokens)]

    begin = text(20)
    asks = [
        ([*begin, IMAGE, *text(5)], PICTURES[:1]),  # a chunk of 32 tokens ends within the first picture
        ([*begin, IMAGE, *text(30), IMAGE, *text(3)], PICTURES[:2]),
        ([IMAGE, IMAGE, *text(40), IMAGE], [PICTURES[2], PICTURES[2], PICTURES[0]]),
    ]
    encoder = {"kind": "hf", "path": str(folder)}
    with (
        ChildService(run_dir, config_of(folder, encoder=encoder), tmp_path / "config.json"),
        Client(run_dir, timeout_s=RESTART_S) as client,
    ):
        answers = []
        for prompt, files in asks:
            answers.append(client.generate(prompt, files, max_tokens=10, hidden_states=True))
            assert answers[-1].tokens == alone.generate(prompt, files, 10)
        assert answers[1].num_cached_tokens == 32  # the begin and a part of the picture
        for (prompt, files), first in zip(asks, answers, strict=True):
            again = client.generate(prompt, files, max_tokens=10, hidden_states=True)
            assert again.num_cached_tokens >= 32
            assert again.tokens == first.tokens
            assert first.hidden_states is not None
            assert again.hidden_states is not None
            assert torch.equal(again.hidden_states, first.hidden_states)
        assert client.stats().engines[0].workers[0].items_encoded == len(PICTURES)
        with pytest.raises(InvalidRequest, match=r"0 image marker\(s\)"):
            client.generate(text(5), PICTURES[:1])
        with pytest.raises(InvalidRequest, match="none: the checkpoint takes text"):
            client.generate(text(5), videos=[b"a film"])


def test_a_tower_of_another_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = checkpoints.save("llava", tmp_path / "checkpoint")
    config = config_of(folder, encoder={"kind": "hf", "path": str(tmp_path)})
    with pytest.raises(ConfigError) as caught:
        check_model(config)
    assert caught.value.details["field"] == "encoder.path"
