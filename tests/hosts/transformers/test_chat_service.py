"""A service with a checkpoint behind `generate`, asked as people ask: chats, texts, stop strings, several answers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import transformers
from PIL import Image

from mmcached.cache.checkpoints.answer_text import first_stop
from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client, Generation, InvalidRequest, NewTokens, Sampling
from tests.hosts.transformers.checkpoints import PICTURES
from tests.hosts.transformers.language_models import alone, save, write_chat_tokenizer, write_tokenizer
from tests.hosts.transformers.models import save_llava
from tests.hosts.transformers.test_language_service import RESTART_S, config_of
from tests.integration.processes import role_pids

pytestmark = pytest.mark.usefixtures("one_thread")

CHAT: list[Any] = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": [{"type": "text", "text": "What is a fox? "}, {"type": "text", "text": "你好, café?"}]},
    {"role": "assistant", "content": "A brown dog."},
    {"role": "user", "content": "Why does it jump over the lazy dog, again and again? " * 4},
]
IN_LINES: list[Any] = [CHAT[0], {"role": "user", "content": "What is a fox? \n你好, café?"}, *CHAT[2:]]
"""The same as a template of text gets it."""


@contextmanager
def served(run_dir: Path, tmp_path: Path, folder: Path, **settings: Any) -> Iterator[tuple[Client, ChildService]]:
    with (
        ChildService(run_dir, config_of(folder, **settings), tmp_path / "config.json") as service,
        Client(run_dir, timeout_s=RESTART_S) as client,
    ):
        yield client, service


def stopped(tokenizer: Any, tokens: Sequence[int], stop: Sequence[str]) -> tuple[list[int], str]:
    """Return where a generation ends that would go on with these tokens, from decoding each begin of it anew."""
    for number in range(1, len(tokens) + 1):
        text = tokenizer.decode(tokens[:number], skip_special_tokens=True).rstrip("\ufffd")
        if (place := first_stop(text, stop)) is not None:
            return list(tokens[:number]), text[:place]
    return list(tokens), tokenizer.decode(tokens, skip_special_tokens=True)


def test_a_chat_is_answered_as_by_transformers(run_dir: Path, tmp_path: Path) -> None:
    folder = save("llama", tmp_path / "checkpoint")
    tokenizer = write_chat_tokenizer(folder)
    prompt = tokenizer.apply_chat_template(IN_LINES, add_generation_prompt=True)["input_ids"]
    wanted = alone(folder, prompt, 24)
    with served(run_dir, tmp_path, folder) as (client, _):
        answer = client.generate(messages=CHAT, max_tokens=24)
        assert answer.num_prompt_tokens == len(prompt)
        assert answer.tokens == wanted
        assert answer.text == tokenizer.decode(wanted, skip_special_tokens=True)
        assert client.generate(prompt, max_tokens=24).text == answer.text
        *pieces, last = client.generate_stream(messages=CHAT, max_tokens=24)
        assert isinstance(last, Generation)
        assert last.text == answer.text
        assert "".join(piece.text for piece in pieces if isinstance(piece, NewTokens)) == answer.text
        sampling = Sampling(seed=5, temperature=2.0, num_logprobs=0)
        several = client.generate(messages=CHAT, max_tokens=8, n=3, sampling=sampling)
        answers = [several, *several.others]
        for index, each in enumerate(answers):
            one = client.generate(prompt, max_tokens=8, sampling=Sampling(seed=5 + index, temperature=2.0))
            assert each.tokens == one.tokens
            assert each.text == one.text
            assert len(each.logprobs) == len(each.tokens)
            assert each.num_cached_tokens == (len(prompt) - 1) // 32 * 32 > 0
        assert len({each.text for each in answers}) == 3
        pieces = list(client.generate_stream(messages=CHAT, max_tokens=8, n=3, sampling=sampling))
        ends = sorted((each for each in pieces if isinstance(each, Generation)), key=lambda each: each.answer_index)
        assert [each.tokens for each in ends] == [each.tokens for each in answers]
        for each in ends:
            assert each.num_cached_tokens == (len(prompt) - 1) // 32 * 32
            texts = [
                piece.text
                for piece in pieces
                if isinstance(piece, NewTokens) and piece.answer_index == each.answer_index
            ]
            assert "".join(texts) == each.text
        usage = several.usage
        assert usage.num_generated_tokens == sum(len(each.tokens) for each in answers)
        assert (usage.num_prompt_tokens, usage.num_items) == (len(prompt), 0)


def test_a_generation_ends_at_the_first_stop_string_whatever_dies(run_dir: Path, tmp_path: Path) -> None:
    folder = save("qwen3", tmp_path / "checkpoint")
    tokenizer = write_chat_tokenizer(folder)
    random, num_tokens = Random(3), 48
    prompts = [tokenizer.encode(f"{'again and ' * index}The fox") for index in range(6)]
    whole = [alone(folder, prompt, num_tokens) for prompt in prompts]

    def stops_of(tokens: list[int]) -> list[str]:
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        places = [random.randrange(len(text) - 3) for _ in range(2)]
        return [text[place : place + random.randrange(1, 6)] for place in places] + ["never", "\ufffdx"]

    asks = [(prompt, tokens, stops_of(tokens)) for prompt, tokens in zip(prompts, whole, strict=True) for _ in range(6)]

    def check(client: Client, prompt: list[int], tokens: list[int], stop: list[str]) -> None:
        sampling = Sampling(temperature=0.0, stop=stop)
        *pieces, streamed = client.generate_stream(prompt, max_tokens=num_tokens, sampling=sampling)
        assert isinstance(streamed, Generation)
        for answer in (streamed, client.generate(prompt, max_tokens=num_tokens, sampling=sampling)):
            assert (answer.tokens, answer.text) == stopped(tokenizer, tokens, stop)
            has_stopped = len(answer.tokens) < num_tokens
            assert answer.finish_reason == ("stop" if has_stopped or answer.tokens[-1] == 2 else "length")
        assert "".join(piece.text for piece in pieces if isinstance(piece, NewTokens)) == streamed.text

    with served(run_dir, tmp_path, folder) as (client, service), ThreadPoolExecutor(4) as askers:
        begun = [askers.submit(check, client, *ask) for ask in asks]
        begun[1].result()
        os.kill(role_pids(service.process.pid)["worker"][0], signal.SIGKILL)
        for each in begun:
            each.result()


def test_what_a_checkpoint_cannot_do_is_an_error_that_names_it(run_dir: Path, tmp_path: Path) -> None:
    folder = save("llama", tmp_path / "checkpoint")
    write_tokenizer(folder)
    with served(run_dir, tmp_path, folder) as (client, _):

        def refusal(**call: Any) -> InvalidRequest:
            with pytest.raises(InvalidRequest) as caught:
                client.generate(max_tokens=4, **call)
            return caught.value

        error = refusal(messages=CHAT)
        assert error.details["field"] == "messages"
        assert "no chat template" in str(error)
        (folder / "chat_template.jinja").write_text("{{ raise_exception('only one message') }}")
        assert "only one message" in str(refusal(messages=CHAT))
        picture = {"type": "image", "image": PICTURES[0]}
        assert refusal(messages=[{"role": "user", "content": [picture]}]).details["field"] == "images"
        error = refusal(prompt="x" * 40_000)
        assert (error.details["field"], error.details["value"]) == ("prompt", "40000 characters")
        error = refusal(messages=[{"role": "user", "content": "x" * 40_000}])
        assert (error.details["field"], error.details["value"]) == ("messages", "40000 characters")
        with pytest.raises(InvalidRequest, match="encodes nothing") as caught:
            client.encode(PICTURES[:1])
        assert caught.value.details["field"] == "images"


def test_pictures_of_a_chat_are_those_of_the_models_own_tower(run_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    save_llava(folder)
    paths = [tmp_path / f"{index}.png" for index in range(2)]
    for path, file in zip(paths, PICTURES, strict=False):
        path.write_bytes(file)
    texts = ["word7 word8 word9", "word20"]
    processor = transformers.AutoProcessor.from_pretrained(folder)
    model = transformers.LlavaForConditionalGeneration.from_pretrained(folder).eval()
    text, picture = ({"type": "text", "text": each} for each in texts), ({"type": "image"} for _ in paths)
    content = [next(text), next(picture), next(text), next(picture)]
    prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    images = [Image.open(path).convert("RGB") for path in paths]
    inputs = processor(text=prompt, images=images, return_tensors="pt")
    with torch.no_grad():
        output = model.generate(**inputs, max_new_tokens=10, do_sample=False)
    files = iter(paths)
    asked = [part if part["type"] == "text" else part | {"image": next(files)} for part in content]
    encoder = {"kind": "hf", "path": str(folder)}
    with served(run_dir, tmp_path, folder, encoder=encoder) as (client, _):
        answer = client.generate(messages=[{"role": "user", "content": asked}], max_tokens=10)
        assert answer.num_prompt_tokens == inputs["input_ids"].shape[1]
        assert answer.tokens == output[0, inputs["input_ids"].shape[1] :].tolist()
        assert answer.usage.num_items == 2
        marked = [{"role": "user", "content": [{"type": "text", "text": "word7 <image>"}]}]
        with pytest.raises(InvalidRequest, match=r"1 image marker\(s\)"):
            client.generate(messages=marked)
