"""The example server, driven by the `openai` client: answers, streams, pictures, errors."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from examples.openai_server import make_server
from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client, Sampling
from tests.hosts.transformers.checkpoints import PICTURES
from tests.hosts.transformers.language_models import save, write_chat_tokenizer
from tests.hosts.transformers.models import save_llava
from tests.hosts.transformers.test_language_service import RESTART_S, config_of

pytestmark = pytest.mark.usefixtures("one_thread")

MESSAGES: list[Any] = [{"role": "user", "content": "What is a fox?"}]


@pytest.fixture
def asked(run_dir: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Any, Client]]:
    """Serve a checkpoint, and OpenAI's protocol in front of it."""
    settings: dict[str, Any] = {}
    folder = tmp_path / "checkpoint"
    if request.param == "llava":
        save_llava(folder)
        settings["encoder"] = {"kind": "hf", "path": str(folder)}
    else:
        write_chat_tokenizer(save(request.param, folder))
    with (
        ChildService(run_dir, config_of(folder, **settings), tmp_path / "config.json"),
        Client(run_dir, timeout_s=RESTART_S) as client,
        make_server(client, 0, "my-model") as server,
    ):
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/v1"
            with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=RESTART_S) as api:
                yield api, client
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("asked", ["llama"], indirect=True)
def test_chats_are_answered_at_once_and_in_streams(asked: tuple[Any, Client]) -> None:
    api, client = asked
    assert [model.id for model in api.models.list()] == ["my-model"]
    wanted = client.generate(messages=MESSAGES, max_tokens=24)
    answer = api.chat.completions.create(model="my-model", messages=MESSAGES, max_tokens=24, temperature=0)
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == (wanted.text, wanted.finish_reason)
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (wanted.num_prompt_tokens, len(wanted.tokens))
    assert usage.prompt_tokens_details.cached_tokens == (wanted.num_prompt_tokens - 1) // 32 * 32
    sampling = Sampling(temperature=1.5, seed=3, top_k=40, stop=["e"])
    several = client.generate(messages=MESSAGES, max_tokens=12, n=2, sampling=sampling)
    texts = [several.text, several.others[0].text]
    call = {"model": "my-model", "messages": MESSAGES, "max_completion_tokens": 12, "temperature": 1.5, "seed": 3}
    call |= {"stop": "e", "n": 2, "extra_body": {"top_k": 40}}
    answer = api.chat.completions.create(**call)
    assert [choice.message.content for choice in answer.choices] == texts
    streamed = ["", ""]
    *chunks, last = api.chat.completions.create(**call, stream=True, stream_options={"include_usage": True})
    for chunk in chunks:
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == [
        several.finish_reason,
        several.others[0].finish_reason,
    ]
    assert last.usage.completion_tokens == several.usage.num_generated_tokens


@pytest.mark.parametrize("asked", ["llama"], indirect=True)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_served_is_an_error_400_that_names_the_parameter(
    asked: tuple[Any, Client], stream: bool
) -> None:
    api, _ = asked
    picture = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
    file = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + base64.b64encode(PICTURES[0]).decode()},
    }
    for param, change in (
        ("temperature", {"temperature": -1}),
        ("max_tokens", {"max_tokens": 0}),
        ("messages", {"messages": []}),
        ("messages[0].content", {"messages": [{"role": "user"}]}),
        ("messages[0].content[0].image_url.url", {"messages": [{"role": "user", "content": [picture]}]}),
        ("images", {"messages": [{"role": "user", "content": [file]}]}),
        ("logprobs", {"logprobs": True}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        ("beam_width", {"extra_body": {"beam_width": 3}}),
        ("stop", {"stop": ["x"] * 17}),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            api.chat.completions.create(**{"model": "m", "messages": MESSAGES, "stream": stream} | change)
        assert caught.value.param == param
        assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError):
        api.models.retrieve("other")


@pytest.mark.parametrize("asked", ["llava"], indirect=True)
def test_pictures_come_as_data_urls(asked: tuple[Any, Client]) -> None:
    api, client = asked
    url = "data:image/png;base64," + base64.b64encode(PICTURES[0]).decode()
    words = {"type": "text", "text": "word5 word6"}
    theirs: list[Any] = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, words]}]
    ours = [{"role": "user", "content": [{"type": "image", "image": PICTURES[0]}, words]}]
    wanted = client.generate(messages=ours, max_tokens=8)
    answer = api.chat.completions.create(model="m", messages=theirs, max_tokens=8, temperature=0)
    assert answer.choices[0].message.content == wanted.text
    assert answer.usage.prompt_tokens == wanted.num_prompt_tokens
