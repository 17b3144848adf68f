"""Two of vLLM's own servers whose weights change share by the weights that they have, and say what is right for these.

A server that has nothing of ours goes through the same states of weights first; every answer is compared with its own
in the same state, bit for bit. After a change of weights a server forgets what it has computed, as a trainer has it do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from mmcached.cli.serve.child_service import ChildService
from tests.hosts.prompts import image, text
from tests.hosts.vllm.conftest import MakeCheckpoint
from tests.hosts.vllm.servers import Answer, VllmServer
from tests.hosts.vllm.sharing import SMALL_STEPS, Pair, ask_all
from tests.integration.processes import eventually, stats_of

MESSAGES = [[image(number), text("What?")] for number in range(8)]
HALF = len(MESSAGES) // 2
DECODER, TOWER = "scale_decoder", "scale_tower"


def change(server: VllmServer, *parts: str) -> None:
    """Change weights, and forget what was computed with the former ones."""
    for part in parts:
        server.call("POST", "/collective_rpc", {"method": part})
    server.call("POST", "/reset_prefix_cache")
    server.call("POST", "/reset_encoder_cache")


@pytest.fixture(scope="module")
def right(checkpoint: MakeCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[Answer]]:
    """What a server says that has nothing of ours, by the state of its weights."""
    found = {}
    with VllmServer(checkpoint("qwen2_5_vl"), tmp_path_factory.mktemp("logs") / "alone.log", SMALL_STEPS) as server:
        states: list[tuple[str, list[str]]] = [("first", []), ("trained", [DECODER]), ("all new", [TOWER])]
        for state, parts in states:
            change(server, *parts)
            found[state] = ask_all(server, MESSAGES)
    assert len({answer.logprobs for answers in found.values() for answer in answers}) == 3 * len(MESSAGES)
    return found


@pytest.fixture(scope="module")
def pair(
    checkpoint: MakeCheckpoint,
    right: Mapping[str, list[Answer]],
    store: ChildService,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    with Pair(checkpoint("qwen2_5_vl"), store.run_dir, tmp_path_factory.mktemp("logs"), SMALL_STEPS) as servers:
        yield servers


class Counted:
    """A server, and how many items its tower has encoded since the last question."""

    def __init__(self, server: VllmServer) -> None:
        self._server = server
        self._before = 0

    def ask(self, messages: slice = slice(None)) -> tuple[list[Answer], int]:
        answers = ask_all(self._server, MESSAGES[messages])
        before, self._before = self._before, len(self._server.items_encoded())
        return answers, self._before - before


def wait_for_puts(run_dir: Path, number: int) -> None:
    eventually(lambda: stats_of(run_dir).store.puts, lambda now: now >= number, f"{number} puts")


def test_servers_share_by_the_weights_that_they_have(
    pair: Pair, store: ChildService, right: Mapping[str, list[Answer]]
) -> None:
    first, second = Counted(pair.first), Counted(pair.second)
    puts = stats_of(store.run_dir).store.puts
    assert first.ask(slice(HALF)) == (right["first"][:HALF], HALF)
    wait_for_puts(store.run_dir, puts + HALF)
    assert second.ask() == (right["first"], len(MESSAGES) - HALF)
    wait_for_puts(store.run_dir, puts + len(MESSAGES))

    change(pair.first, DECODER)
    assert first.ask() == (right["trained"], 0), "the tower is what it was"
    change(pair.first, TOWER)
    assert first.ask(slice(HALF)) == (right["all new"][:HALF], HALF), "no server had this tower"
    wait_for_puts(store.run_dir, puts + len(MESSAGES) + HALF)
    change(pair.second)
    assert second.ask() == (right["first"], 0), "its own weights have not changed"

    change(pair.second, TOWER, DECODER)
    assert second.ask() == (right["all new"], len(MESSAGES) - HALF), "the first server had this tower before"
    wait_for_puts(store.run_dir, puts + 2 * len(MESSAGES))
    change(pair.first)
    assert first.ask() == (right["all new"], 0)


def test_a_tower_that_comes_back_finds_what_it_had_encoded(pair: Pair, right: Mapping[str, list[Answer]]) -> None:
    """Comes last. A server that starts anew has the checkpoint's weights, whatever became of the others'."""
    pair.second.stop()
    assert Counted(pair.second).ask() == (right["first"], 0)
