"""`kill -9` of each role in mid-traffic: what was open ends right or retryably, and soon the service answers right
again. No counter goes backwards.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import AsyncClient, Client, Generation, RowsWanted
from mmcached.wire.errors import MmcachedError
from tests.integration.local_service import LocalService, scratch_service
from tests.integration.processes import (
    DEADLINE_S,
    descendants,
    eventually,
    is_alive,
    leases_of,
    retryably,
    role_pids,
    segments_of,
    small_config,
    stats_of,
    stopped,
)
from tests.integration.streams import Joined
from tests.integration.test_lifecycle import kill_a_client
from tests.integration.test_watching import Key, counters, get
from tests.integration.workloads import photo
from tests.present import present

QUESTIONS = [(f"{index}: compare <image> with <image>, at length", (index % 4, (index + 1) % 4)) for index in range(8)]
MAX_TOKENS = 120

Outcome = Generation | BaseException


def answers(client: Client) -> list[list[int]]:
    """Return the right tokens of each question, asked one by one."""
    return [client.generate(text, [photo(index) for index in photos], MAX_TOKENS).tokens for text, photos in QUESTIONS]


@pytest.fixture(scope="module")
def wanted() -> list[list[int]]:
    """The right tokens, from a service that nobody kills."""
    with scratch_service(small_config(world_size=1)) as (_, client):
        return answers(client)


async def ask_all(client: AsyncClient) -> list[Outcome]:
    """Ask all questions at once, every other one for a stream; an error is an outcome."""
    calls = [
        (_stream if index % 2 else _generate)(client, text, [photo(index) for index in photos])
        for index, (text, photos) in enumerate(QUESTIONS)
    ]
    return list(await asyncio.gather(*calls, return_exceptions=True))


async def _generate(client: AsyncClient, text: str, photos: Sequence[bytes]) -> Generation:
    return await client.generate(text, photos, MAX_TOKENS, hidden_states=True)


async def _stream(client: AsyncClient, text: str, photos: Sequence[bytes]) -> Generation:
    joined = Joined()
    async for piece in client.generate_stream(text, photos, MAX_TOKENS, hidden_states=RowsWanted(delivery="delta")):
        joined.take(piece)
    return joined.whole()


def tokens_of(outcomes: Sequence[Outcome]) -> list[list[int]]:
    assert all(isinstance(outcome, Generation) for outcome in outcomes), outcomes
    return [outcome.tokens for outcome in outcomes if isinstance(outcome, Generation)]


def assert_right_or_retryable(outcomes: Sequence[Outcome], wanted: Sequence[Sequence[int]]) -> None:
    for outcome, tokens in zip(outcomes, wanted, strict=True):
        if isinstance(outcome, Generation):
            assert outcome.tokens == tokens
        else:
            assert isinstance(outcome, MmcachedError), repr(outcome)
            assert outcome.retryable, repr(outcome)


class CountersOf:
    """The counters of a service's metrics page: none ever falls, and none is lost."""

    def __init__(self, service: ChildService) -> None:
        self._service = service
        self.last: dict[Key, float] = {}

    def look(self, when: str) -> None:
        now = counters(get(self._service, "/metrics")[1])
        assert self.last.keys() <= now.keys(), when
        assert not [key for key, value in self.last.items() if now[key] < value], when
        self.last = now

    def restarts(self) -> dict[str, float]:
        return {
            dict(labels)["role"]: value
            for (name, labels), value in self.last.items()
            if name == "mmcached_process_restarts_total"
        }


async def kill_in_mid_traffic(service: ChildService, victim: int, wanted: list[list[int]], seen: CountersOf) -> None:
    """Ask; kill once all requests are open, which no worker ends meanwhile; go on until every answer is right again."""
    seen.look("before the kill")
    async with AsyncClient(service.run_dir) as client, AsyncClient(service.run_dir) as watcher:
        with stopped(role_pids(service.process.pid)["worker"]):
            traffic = asyncio.create_task(ask_all(client))
            while (await watcher.stats()).requests_open < len(QUESTIONS):
                assert not traffic.done()
            os.kill(victim, signal.SIGKILL)
        seen.look("while it is dead")
        assert_right_or_retryable(await asyncio.wait_for(traffic, DEADLINE_S), wanted)
        give_up = asyncio.get_running_loop().time() + DEADLINE_S
        while True:
            outcomes = await asyncio.wait_for(ask_all(client), DEADLINE_S)
            assert_right_or_retryable(outcomes, wanted)
            if all(isinstance(outcome, Generation) for outcome in outcomes):
                break
            assert asyncio.get_running_loop().time() < give_up, outcomes
            await asyncio.sleep(0.05)
    eventually(lambda: get(service, "/readyz")[0], lambda status: status == 200, "readiness")
    seen.look("after it is back")


@pytest.mark.parametrize(
    ("mode", "roles"),
    [
        ("shm", ["worker 0", "engine", "frontend"]),
        pytest.param("lru", ["frontend", "worker 1"], marks=pytest.mark.soak),
    ],
)
def test_kill_of_each_role(run_dir: Path, tmp_path: Path, mode: str, roles: list[str], wanted: list[list[int]]) -> None:
    """A client that is idle meanwhile needs no care: its next call just works."""
    config = small_config(mm_processor_cache_type=mode, restart_backoff_s=0.05, mm_shm_inline_max_kb=0)
    with ChildService(run_dir / "s", config, tmp_path / "config.json") as service:
        kill_in_turn(service, mode, roles, wanted)


@pytest.mark.soak
def test_without_a_ring(run_dir: Path, tmp_path: Path, wanted: list[list[int]]) -> None:
    """A client that is killed and an engine that is, in one service: each start takes seconds."""
    config = small_config(world_size=1, mm_processor_cache_type="lru", restart_backoff_s=0.05)
    with ChildService(run_dir / "s", config, tmp_path / "config.json") as service:
        kill_a_client(service.run_dir, mode="lru")
        kill_in_turn(service, "lru", ["engine"], wanted)


def kill_in_turn(service: ChildService, mode: str, roles: list[str], wanted: list[list[int]]) -> None:
    """Kill roles of a service, each in mid-traffic, and then stop it: nothing is left."""
    seen = CountersOf(service)
    with Client(service.run_dir) as idle:
        before = idle.generate("before and after").tokens
        rings, victims = set[Path](), list[int]()
        for role in roles:
            kind, _, rank = role.partition(" ")
            victims.append(role_pids(service.process.pid)[kind][int(rank or 0)])
            rings |= segments_of(descendants(service.process.pid))
            asyncio.run(kill_in_mid_traffic(service, victims[-1], wanted, seen))
        killed = {
            {"engine": "engine 0", "worker 0": "worker 0.0", "worker 1": "worker 0.1"}.get(role, role) for role in roles
        }
        assert {role for role, number in seen.restarts().items() if number} >= killed
        assert (
            eventually(
                lambda: retryably(lambda: idle.generate("before and after", timeout_s=2.0).tokens),
                lambda tokens: tokens is not None,
                "an answer to the idle",
            )
            == before
        )
        stats = eventually(
            lambda: stats_of(service.run_dir), lambda s: leases_of(s) == 0 and s.requests_open == 0, "leases at rest"
        )
        assert stats.desyncs == 0
        if mode == "shm":  # the frontend died last, and its successor has what it had processed
            assert stats.processor.hits > stats.processor.items_processed == 0
        everybody = descendants(service.process.pid)
        rings |= segments_of(everybody)
        assert service.stop() == 0
    assert not [pid for pid in [*victims, *everybody] if is_alive(pid)]
    assert not [path for path in rings if path.exists()]
    assert not list(service.run_dir.glob("*.sock"))


def test_an_engine_that_the_frontend_has_dropped_is_served_again_and_keeps_its_caches(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalService(run_dir, small_config(world_size=1)) as service, Client(run_dir) as client:
        ask = partial(client.generate, "what is <image>, at length?", [photo(0)], MAX_TOKENS)
        wanted = ask()
        connections = service.gateway.connections
        (former,) = connections.ready()
        look = connections.check

        def drop() -> None:
            monkeypatch.setattr(connections, "check", look)
            connections.lose(former, "for a test")

        monkeypatch.setattr(connections, "check", drop)  # in the frontend's own thread
        eventually(connections.ready, lambda ready: ready not in ([], [former]), "another session")
        answer = present(eventually(lambda: retryably(ask), lambda answer: answer is not None, "an answer"))
        assert answer.tokens == wanted.tokens
        assert answer.num_cached_tokens > 0
        eventually(lambda: stats_of(run_dir), lambda stats: leases_of(stats) == 0, "leases at rest")
