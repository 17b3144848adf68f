"""Prompts: what each model takes, what it refuses before anything else is done, and the texts of answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from mmcached.cache.checkpoints.language import Language
from mmcached.gateway.caches.item_cache import OutgoingItem
from mmcached.gateway.processing.media import Medium
from mmcached.gateway.processing.pool import Mailbox
from mmcached.gateway.requests.open_requests import OpenRequest
from mmcached.gateway.requests.prompts import CheckpointPrompts, Prompts, TextWork
from mmcached.gateway.requests.request_builder import build_prompt
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.messages.frontend import Encode, Generate
from mmcached.wire.messages.parts import ChatMessage, ContentPart, Sampling
from mmcached.wire.model_config import ModelConfig
from tests.cache.checkpoints.folders import GEMMA, LLAMA, config_of, model_config_of, write
from tests.integration.processes import eventually
from tests.shm.processes import DEADLINE_S

CLIENT = "0" * 32
CHAT = [ChatMessage("user", "Hello")]


def image() -> Medium:
    return Medium("image", b"file", "images[0]")


def request(prompt: str | list[int], *media: Medium, **fields: Any) -> OpenRequest:
    return OpenRequest(1, b"", Generate(CLIENT, 1, prompt, 4, None, 9.0, **fields), list(media), 9.0)


@contextmanager
def prompts_of(config: ServiceConfig) -> Iterator[Prompts]:
    mailbox = Mailbox()
    prompts = Prompts(config, mailbox)
    try:
        yield prompts
    finally:
        prompts.close()
        mailbox.close()


def refused(prompts: Prompts, asked: OpenRequest) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        prompts.check(asked)
    return caught.value


def text_of(prompts: Prompts, asked: OpenRequest, token_ids: Sequence[int]) -> str | None:
    with pytest.raises(StopIteration) as stop:
        next(prompts.answer_text(asked, token_ids))
    text: str | None = stop.value.value
    return text


def test_the_reference_model_neither_samples_nor_chats() -> None:
    with prompts_of(ServiceConfig()) as prompts:
        assert "none: the reference model" in str(refused(prompts, request([1], sampling=Sampling())))
        assert "has no chat template" in str(refused(prompts, request("", messages=CHAT)))


def test_the_reference_models_answer_has_its_bytes_as_text() -> None:
    with prompts_of(ServiceConfig()) as prompts:
        asked = request("see")
        prompts.check(asked)
        assert asked.token_ids
        assert text_of(prompts, asked, [*"né".encode(), 255, 257]) == "né\ufffd"


def test_the_reference_model_takes_no_embeddings_of_a_checkpoint(tmp_path: Path) -> None:
    with prompts_of(config_of(write(tmp_path))) as prompts:
        assert refused(prompts, request("see <image>", image())).details["field"] == "images"
        asked = request("see")
        prompts.check(asked)
        assert asked.token_ids
        encode = OpenRequest(1, b"", Encode(CLIENT, 1, 1.0), [image(), image()], 9.0)
        prompts.check(encode)
        assert len(encode.token_ids) == 2


def test_a_checkpoints_prompt_has_ids_of_its_vocabulary(tmp_path: Path) -> None:
    with prompts_of(model_config_of(write(tmp_path, LLAMA))) as prompts:
        asked = request([258, 511])  # 258 is a picture of the reference model
        prompts.check(asked)
        assert asked.token_ids == [258, 511]
        assert "below 512" in str(refused(prompts, request([512])))
        assert "the checkpoint takes text" in str(refused(prompts, request([258], image())))


def test_a_checkpoint_that_only_generates_encodes_nothing(tmp_path: Path) -> None:
    with prompts_of(model_config_of(write(tmp_path, LLAMA))) as prompts:
        asked = OpenRequest(1, b"", Encode(CLIENT, 1, 1.0), [image(), image()], 9.0)
        error = refused(prompts, asked)
        assert (error.details["field"], error.details["value"]) == ("images", 2)
        assert "--encoder.kind hf" in str(error)


@pytest.mark.parametrize(
    ("prompt", "fields", "field"),
    [
        ("text", {}, "prompt"),
        ("", {"messages": CHAT}, "messages"),
        ("text", {"messages": CHAT}, "prompt"),
        ([1], {"sampling": Sampling(stop=["end"])}, "sampling.stop"),
    ],
)
def test_a_checkpoint_without_a_tokenizer_takes_no_text(
    tmp_path: Path, prompt: str | list[int], fields: dict[str, Any], field: str
) -> None:
    with prompts_of(model_config_of(write(tmp_path, LLAMA))) as prompts:
        error = refused(prompts, request(prompt, **fields))
        assert error.details["field"] == field
        if field != "prompt" or not fields:
            assert "tokenizer.json" in str(error)


def test_text_is_tokenized_while_the_loop_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_begun, may_end = Event(), Event()

    def slowly(checkpoint: CheckpointPrompts, message: Generate) -> list[int]:
        has_begun.set()
        assert may_end.wait(DEADLINE_S)
        return [7, 8]

    monkeypatch.setattr(CheckpointPrompts, "tokens_of", slowly)
    mailbox = Mailbox()
    with closing(mailbox), closing(Prompts(model_config_of(write(tmp_path, LLAMA)), mailbox)) as prompts:
        asked = request("a long text")
        verb = prompts.find(asked)
        wait = next(verb)
        assert has_begun.wait(DEADLINE_S)
        assert not mailbox.take_all()
        may_end.set()
        (done,) = eventually(mailbox.take_all, bool, "the tokens of the text")
        assert {done.token} == wait.keys
        assert isinstance(done.token, TextWork)
        done.token.outcome = done.outcome
        with pytest.raises(StopIteration):
            verb.send(None)
        assert asked.token_ids == [7, 8]


def test_an_answer_without_a_tokenizer_has_no_text(tmp_path: Path) -> None:
    with prompts_of(model_config_of(write(tmp_path, LLAMA))) as prompts:
        asked = request([1])
        prompts.check(asked)
        assert text_of(prompts, asked, [5, 6]) is None


def test_too_many_images_are_refused_before_the_text_is_read(tmp_path: Path) -> None:
    folder = write(tmp_path, LLAMA)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    config = ServiceConfig.from_fields({"max_images_per_request": 1, "model": {"kind": "hf", "path": str(folder)}})
    messages = [ChatMessage("user", [ContentPart("image"), ContentPart("image")])]
    with prompts_of(config) as prompts:
        assert refused(prompts, request("", image(), image(), messages=messages)).details["field"] == "images"


@pytest.mark.parametrize(("model", "bound"), [(GEMMA, [40, 30]), (LLAMA, [0, 0])])
def test_a_picture_that_is_computed_whole_is_bound_to_the_tokens_before_it(
    tmp_path: Path, model: dict[str, object], bound: list[int]
) -> None:
    config = config_of(write(tmp_path, model), model=ModelConfig(kind="hf", path=str(tmp_path), chunk_tokens=64))
    token_ids = [*[5] * 40, 258, *[5] * 34, 258]
    media = [Medium("image", b"", "images[0]", key=key) for key in ("a", "b")]
    opened = request(token_ids, *media)
    opened.token_ids, opened.language = token_ids, Language.of(config)
    opened.marks = {"image": 258}
    items = [OutgoingItem(key, 100, num_embeds, None) for key, num_embeds in (("a", 20), ("b", 9))]
    prompt = build_prompt(opened, items, config)
    assert [(each.offset, each.num_bound) for each in prompt.features] == [(40, bound[0]), (94, bound[1])]
