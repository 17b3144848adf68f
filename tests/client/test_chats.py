"""Chats and several answers: what is sent for them, how seeds differ, and that one error ends all."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmcached.client import InvalidRequest, Sampling, TokenUsage
from mmcached.wire.errors import DeadlineExceeded, error_to_wire
from mmcached.wire.messages.client import Failed, Generated, ToClient
from mmcached.wire.messages.frontend import Cancel, FromClient, Generate
from mmcached.wire.messages.parts import MAX_SEED, ChatMessage, ContentPart
from tests.client.blocking import Make
from tests.client.services import fake_service
from tests.integration.processes import eventually

CAT, DOG = b"a cat", b"a dog"
CHAT = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [
            {"type": "image", "image": CAT},
            {"type": "text", "text": "Which is larger?"},
            {"type": "image", "image": DOG},
        ],
    },
]


def tell_seed(message: FromClient) -> list[ToClient]:
    """Answer a generation with its seed."""
    if not isinstance(message, Generate):
        return []
    seed = 0 if message.sampling is None or message.sampling.seed is None else message.sampling.seed
    answer = Generated(message.request_id, [seed % 1000, 1], "stop", 9, 4, text=str(seed), num_items=2)
    return [answer]


def asked(received: list[FromClient]) -> list[Generate]:
    return [message for message in received if isinstance(message, Generate)]


def test_a_chat_is_sent_with_its_pictures_in_order(run_dir: Path, make: Make, tmp_path: Path) -> None:
    with fake_service(run_dir, tell_seed) as received, make(run_dir) as client:
        answer = client.generate(messages=CHAT)
        (sent,) = asked(received)
        assert sent.prompt == ""
        parts = [ContentPart("image"), ContentPart("text", "Which is larger?"), ContentPart("image")]
        assert sent.messages == [ChatMessage("system", "Be brief."), ChatMessage("user", parts)]
        assert answer.usage == TokenUsage(9, 4, 2, 2)
        missing = {"role": "user", "content": [{"type": "image", "image": tmp_path / "none.png"}]}
        with pytest.raises(InvalidRequest) as caught:
            client.generate(messages=[missing])
        assert caught.value.details["field"] == "images[0]"
        *_, last = client.generate_stream(messages=CHAT)
        assert last.text == "0"


def test_answers_have_consecutive_seeds_and_the_first_comes_first(run_dir: Path, make: Make) -> None:
    with fake_service(run_dir, tell_seed) as received, make(run_dir) as client:
        answer = client.generate("x", n=3, sampling=Sampling(seed=MAX_SEED - 1, stop=["."]))
        assert [each.text for each in (answer, *answer.others)] == [str(MAX_SEED - 1), str(MAX_SEED), "0"]
        assert answer.usage.num_generated_tokens == 6
        assert all(each.sampling is not None and each.sampling.stop == ["."] for each in asked(received))
        one = client.generate("x", n=2, sampling=Sampling())
        assert int(one.others[0].text) == (int(one.text) + 1) % (MAX_SEED + 1), "a random seed has neighbours too"


def test_an_error_of_one_answer_ends_and_cancels_all(run_dir: Path, make: Make) -> None:
    def refuse_second(message: FromClient) -> list[ToClient]:
        if not isinstance(message, Generate) or message.sampling is None:
            return []
        if message.sampling.seed == 8:
            return [Failed(message.request_id, error_to_wire(InvalidRequest("prompt", 1, "shorter")))]
        return tell_seed(message) if message.sampling.seed == 7 else []

    with fake_service(run_dir, refuse_second) as received, make(run_dir) as client:
        with pytest.raises(InvalidRequest, match="shorter"):
            client.generate("x", n=3, sampling=Sampling(seed=7))

        def ids() -> tuple[list[int], list[int]]:
            sent = [each.request_id for each in asked(received)]
            return sent[1:], [message.request_id for message in received if isinstance(message, Cancel)]

        eventually(ids, lambda found: len(found[0]) == 2 and found[0] == found[1], "both are cancelled")
        with pytest.raises(DeadlineExceeded):
            client.generate("x", n=2, sampling=Sampling(seed=9), timeout_s=0.2)
