"""Two of vLLM's own servers and one store: right answers, nothing encoded twice, through the death of each of them.

All answers are compared, token for token and log-probability for log-probability, bit for bit, with those of a server
that has nothing of ours. Prompts are computed in chunks and the encoder's budget is two images.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from itertools import cycle

import pytest

from mmcached.cli.serve.child_service import ChildService
from tests.hosts.prompts import Content, image, messages, text
from tests.hosts.vllm.conftest import MakeCheckpoint
from tests.hosts.vllm.servers import Answer, Refused, VllmServer
from tests.hosts.vllm.sharing import SMALL_STEPS, Outcome, Pair, ask_all, ask_through
from tests.integration.processes import eventually, role_pids, stats_of

MESSAGES = list(messages(200, seed=1, images=range(60)))
CALM = list(messages(20, seed=2, images=range(60)))
FRONTEND_DIES, SERVER_DIES, BOTH_DIE = (list(messages(150, seed=seed, images=range(200))) for seed in (3, 4, 5))
NEW = [[image(number), text("What?")] for number in range(1000, 1200)]
AFTER = 30
"""So many are answered when something dies."""


@pytest.fixture(scope="module")
def alone(checkpoint: MakeCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """What a server says that has nothing of ours, by message."""
    asked = [*MESSAGES, *CALM, *FRONTEND_DIES, *SERVER_DIES, *BOTH_DIE, *NEW]
    with VllmServer(checkpoint("qwen2_5_vl"), tmp_path_factory.mktemp("logs") / "alone.log", SMALL_STEPS) as server:
        return {str(message): answer for message, answer in zip(asked, ask_all(server, asked), strict=True)}


@pytest.fixture(scope="module")
def pair(
    checkpoint: MakeCheckpoint, alone: dict[str, Answer], store: ChildService, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    with Pair(checkpoint("qwen2_5_vl"), store.run_dir, tmp_path_factory.mktemp("logs"), SMALL_STEPS) as servers:
        yield servers


def assert_right(outcomes: Sequence[Outcome], asked: Sequence[Content], alone: dict[str, Answer]) -> None:
    wrong = [
        (outcome, alone[str(message)])
        for message, outcome in zip(asked, outcomes, strict=True)
        if outcome != alone[str(message)]
    ]
    assert not wrong, f"{len(wrong)} of {len(asked)}; the first: {wrong[0]}"


def test_a_wrong_image_would_show(alone: dict[str, Answer]) -> None:
    answers = [alone[str(message)].logprobs for message in NEW]
    assert len(set(answers)) == len(answers)


def test_second_server_encodes_nothing_and_answers_as_a_server_alone(
    pair: Pair, store: ChildService, alone: dict[str, Answer]
) -> None:
    assert_right(ask_all(pair.first, MESSAGES), MESSAGES, alone)
    assert pair.first.items_encoded()
    pair.wait_until_saved()
    assert_right(ask_all(pair.second, MESSAGES), MESSAGES, alone)
    assert pair.second.items_encoded() == []
    eventually(lambda: stats_of(store.run_dir).store.saved.encoder_us, lambda saved_us: saved_us > 0, "seconds saved")


def test_the_name_that_a_client_gives_is_no_content(pair: Pair, alone: dict[str, Answer]) -> None:
    for server, number in ((pair.first, 1000), (pair.second, 1001)):
        message = [image(number) | {"uuid": "my-cat"}, text("What?")]
        assert server.ask(message) == alone[str(NEW[number - 1000])]


def test_an_unknown_name_without_content_fails_its_request_only(pair: Pair, alone: dict[str, Answer]) -> None:
    nobody_has: Content = [{"type": "image_embeds", "image_embeds": {"image_grid_thw": [1, 8, 8]}, "uuid": "nobody"}]
    refused: list[Refused] = []

    def ask_for_it() -> None:
        with pytest.raises(Refused) as error:
            pair.second.ask([*nobody_has, text("What?")])
        refused.append(error.value)

    outcomes = ask_through([pair.second], MESSAGES, trouble=ask_for_it, after=AFTER)
    assert refused
    assert_right(outcomes, MESSAGES, alone)


def test_frontend_is_killed_in_a_burst(pair: Pair, store: ChildService, alone: dict[str, Answer]) -> None:
    servers = [pair.first, pair.second]
    outcomes = ask_through(servers, FRONTEND_DIES, trouble=lambda: kill_frontend(store), after=AFTER)
    assert_right(outcomes, FRONTEND_DIES, alone)
    assert_sharing_goes_on(pair, store, alone)


def test_first_server_is_killed_in_a_burst(pair: Pair, store: ChildService, alone: dict[str, Answer]) -> None:
    first, second = pair.first, pair.second
    outcomes = ask_through([first, second], SERVER_DIES, trouble=first.kill, after=AFTER)
    assert_right(outcomes[1::2], SERVER_DIES[1::2], alone)
    assert_those_of_the_dead_are_right_or_failed(outcomes[::2], SERVER_DIES[::2], alone)
    before = second.items_encoded()
    assert_right(ask_all(second, MESSAGES), MESSAGES, alone)
    assert second.items_encoded() == before, "what the dead server has saved is there"


def test_a_server_that_starts_again_encodes_nothing(pair: Pair, alone: dict[str, Answer]) -> None:
    assert_right(ask_all(pair.first, MESSAGES), MESSAGES, alone)
    assert pair.first.items_encoded() == []


def test_frontend_and_first_server_are_killed_at_once(
    pair: Pair, store: ChildService, alone: dict[str, Answer]
) -> None:
    first, second = pair.first, pair.second

    def kill_both() -> None:
        kill_frontend(store)
        first.kill()

    outcomes = ask_through([first, second], BOTH_DIE, trouble=kill_both, after=AFTER)
    assert_right(outcomes[1::2], BOTH_DIE[1::2], alone)
    assert_those_of_the_dead_are_right_or_failed(outcomes[::2], BOTH_DIE[::2], alone)
    assert_right(ask_all(second, CALM), CALM, alone)
    eventually(lambda: frontend_of(store), bool, "another frontend")


def kill_frontend(store: ChildService) -> None:
    os.kill(role_pids(store.process.pid)["frontend"][0], signal.SIGKILL)


def frontend_of(store: ChildService) -> list[int]:
    return role_pids(store.process.pid)["frontend"]


def assert_those_of_the_dead_are_right_or_failed(
    outcomes: Sequence[Outcome], asked: Sequence[Content], alone: dict[str, Answer]
) -> None:
    answered = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Answer)]
    assert_right([outcomes[number] for number in answered], [asked[number] for number in answered], alone)


def assert_sharing_goes_on(pair: Pair, store: ChildService, alone: dict[str, Answer]) -> None:
    """Ask the first server until it saves again, then both about new images, which the second need not encode."""
    tried, new = NEW[:150], NEW[150:]
    again = cycle(tried)

    def puts_after_another_message() -> int:
        pair.first.ask(next(again))
        return puts(store)

    before = puts_after_another_message()
    before = eventually(puts_after_another_message, lambda now: now > before, "a save by the first server")
    assert_right(ask_all(pair.first, new), new, alone)
    eventually(lambda: puts(store), lambda now: now >= before + len(new), "saves by the first server")
    encoded = pair.second.items_encoded()
    assert_right(ask_all(pair.second, new), new, alone)
    assert pair.second.items_encoded() == encoded


def puts(store: ChildService) -> int:
    return stats_of(store.run_dir).store.puts
