"""Chats and several answers: what is sent for them, how seeds differ, and that one error ends all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmcached.client import CacheMiss, Generation, InvalidRequest, Sampling, TokenUsage
from mmcached.wire.errors import DeadlineExceeded, error_to_wire
from mmcached.wire.messages.client import Failed, Generated, ToClient
from mmcached.wire.messages.frontend import Cancel, FromClient, Generate
from mmcached.wire.messages.parts import MAX_SEED, ChatMessage, ContentPart
from tests.client.blocking import Make
from tests.client.services import StoreService, fake_service
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


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_named_picture_of_a_chat_is_sent_as_its_digest_and_as_a_file_if_it_is_needed(
    service: StoreService, client: Any, is_streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service has no digest: the file comes from the store, or with the message, or the miss names it."""
    digest = client.bind("cat", CAT)
    seen: list[tuple[list[str | None], list[bytes]]] = []

    def answer(peer: bytes, message: FromClient, payload: list[Any]) -> None:
        if isinstance(message, Generate):
            seen.append((list(message.contents), list(map(bytes, payload))))
            missed = Failed(message.request_id, error_to_wire(CacheMiss([digest])))
            made = Generated(message.request_id, [5], "stop", 1, 0)
            service.listener.try_send(peer, missed if message.contents else made)
        else:
            serve(peer, message, payload)

    def ask(*parts: dict[str, Any]) -> Generation:
        messages = [{"role": "user", "content": list(parts)}]
        if not is_streamed:
            return client.generate(messages=messages)  # type: ignore[no-any-return]
        *_, last = client.generate_stream(messages=messages)
        return last  # type: ignore[no-any-return]

    serve = service.serve
    monkeypatch.setattr(service, "serve", answer)
    named, other = {"type": "image", "name": "cat"}, {"type": "image", "image": DOG}
    for parts, missing in (((named, other), "cat"), (({"type": "image", "name": "x"}, other), "x")):
        with pytest.raises(CacheMiss) as caught:
            ask(*parts)
        assert caught.value.mm_hashes == [missing]
    assert seen == [([digest, None], [b"", DOG])]
    assert ask(named | {"image": CAT}, other).tokens == [5]
    assert seen[1:] == [([digest, None], [b"", DOG]), ([], [CAT, DOG])]
    client.bind("cat", CAT, keeps_file=True)
    assert ask(other, named).tokens == [5]
    assert seen[-1][1] == [DOG, CAT]


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
