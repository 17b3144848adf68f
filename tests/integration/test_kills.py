"""`make soak`: two engines of two workers each, whose processes are killed at random, alone or two at a time.

The traffic is mixed: generations with hidden states, streams, embeddings, images by id, the store's verbs.

Every answer is the one that a service without caches gives, or an error that may be tried again; at the end everything
is answered, and nothing is left over.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import AsyncClient, RowsWanted
from mmcached.wire.errors import DeadlineExceeded, MmcachedError, PeerGone, ServiceUnavailable
from mmcached.wire.limits import LimitsConfig
from tests.integration.json_child import Crowd, crowd
from tests.integration.processes import DEADLINE_S, descendants, is_alive, segments_of, stats_of
from tests.integration.streams import Joined
from tests.integration.test_bit_identical import uncached
from tests.integration.test_mixed_load import answered_without_caches, at_rest, config, mixed_child, save_images
from tests.integration.workloads import Answer, Ask, assert_same, random_rounds

pytestmark = pytest.mark.soak

DURATION_S = float(os.environ.get("MMC_TEST_KILLS_S", "60"))
RECOVERY_S = 300.0
"""How long it may take until both engines are ready: four processes with torch, on what is left of a CPU."""
NUM_ENGINES, NUM_WORKERS = 2, 2
NUM_ROLE_CLIENTS = NUM_ENGINES * (1 + NUM_WORKERS)
NUM_CLIENTS = 3
SEED = 5
AT_ONCE = 4
PAUSE_S = 0.05
"""Between two looks: only politeness."""
RETRYABLE = (DeadlineExceeded, PeerGone, ServiceUnavailable)
"""What a question for figures may come to."""
EVENTS = ("kill", "kill", "kill", "kill two", "kill a client", "stop", "flush")
MODES: dict[str, dict[str, object]] = {
    "shm": {},
    "processor_only": {"mm_processor_cache_type": "processor_only"},
    "lru": {"mm_processor_cache_type": "lru"},
}


@pytest.mark.parametrize("mode", MODES)
def test_whatever_dies_answers_are_right_or_may_be_asked_again(
    mode: str, run_dir: Path, tmp_path: Path, draw_seeds: Callable[[int], range]
) -> None:
    seed = draw_seeds(1)[0]
    uncached(SEED)  # now: it runs a loop of its own
    questions = tmp_path / "questions.json"
    answered = answered_without_caches(save_images(tmp_path / "images"))
    questions.write_bytes(msgspec.json.encode(answered))
    settings = config(
        data_parallel_size=NUM_ENGINES,
        world_size=NUM_WORKERS,
        restart_backoff_s=0.004,
        max_restarts=100_000,
        limits=LimitsConfig(max_deaths_per_request=100),  # by chance the same request may be in many deaths
        **MODES[mode],
    )
    with ChildService(run_dir / "s", settings, tmp_path / "config.json") as service:
        with crowd(mixed_child(service.run_dir, questions, "rough"), NUM_CLIENTS) as clients:
            events = Events(service, clients, random.Random(seed))
            counts = asyncio.run(events.run(time.monotonic() + DURATION_S))
            counts += clients.end()
        asyncio.run(answer_all(service.run_dir))
        stats = at_rest(service.run_dir, NUM_ROLE_CLIENTS)
        events.seen()
        assert service.stop() == 0
    print(f"{counts}\n{stats}")
    assert (stats.desyncs, stats.store.ring.fenced_readers) == (0, 0)
    for what in ("right", "streams", "store hits", "by id alone"):
        assert counts[what], f"{what}: {counts}"
    assert not [pid for pid in events.pids if is_alive(pid)]
    assert not [path for path in events.segments if path.exists()]
    assert not list((run_dir / "s").glob("*.sock"))


class Events:
    """What happens to a service, and the traffic of this process meanwhile.

    Attributes:
        pids, segments: all that were seen.
    """

    def __init__(self, service: ChildService, clients: Crowd, rng: random.Random) -> None:
        self._service = service
        self._clients = clients
        self._rng = rng
        self.pids: set[int] = set()
        self.segments: set[Path] = set()
        self._counts: Counter[str] = Counter()

    async def run(self, until: float) -> Counter[str]:
        """Let things happen until then; return what was counted."""
        traffic = asyncio.create_task(self._ask(until))
        while time.monotonic() < until:
            event = self._rng.choice(EVENTS)
            self._counts[event] += 1
            await self._happen(event)
            await asyncio.sleep(self._rng.random() ** 2)  # the moment is what is random here; nothing waits for it
            if self._rng.random() < 0.7:
                await asyncio.wait_for(self._recover(traffic), RECOVERY_S)
        await asyncio.wait_for(traffic, RECOVERY_S)
        return self._counts

    def seen(self) -> list[int]:
        """Return the processes of the service, and take note of them and of their segments."""
        pids = descendants(self._service.process.pid)
        self.pids.update(pids)
        self.segments |= segments_of(pids)
        return pids

    async def _happen(self, event: str) -> None:
        pids = self.seen()
        match event:
            case "kill" | "kill two":
                for pid in self._rng.sample(pids, min(len(pids), 1 + (event == "kill two"))):
                    _signal(pid, signal.SIGKILL)
            case "kill a client":
                self._clients.kill_one()
            case "stop" if pids:
                pid = self._rng.choice(pids)
                _signal(pid, signal.SIGSTOP)
                await asyncio.sleep(self._rng.random())
                _signal(pid, signal.SIGCONT)
            case "flush":
                async with AsyncClient(self._service.run_dir, connect_timeout_s=DEADLINE_S) as client:
                    forget = self._rng.choice((client.flush, client.invalidate))
                    await self._judge([forget(timeout_s=1.0)], [None])

    async def _recover(self, traffic: asyncio.Task[None]) -> None:
        """Return when both engines are ready, or when the traffic has ended."""
        async with AsyncClient(self._service.run_dir) as client:
            while not traffic.done():
                with contextlib.suppress(*RETRYABLE):
                    if len((await client.stats(timeout_s=1.0)).engines) == NUM_ENGINES:
                        return
                await asyncio.sleep(PAUSE_S)

    async def _ask(self, until: float) -> None:
        """Ask for some of the known answers at once, again and again."""
        known = list(zip(all_asks(), uncached(SEED), strict=True))
        async with AsyncClient(self._service.run_dir, connect_timeout_s=DEADLINE_S) as client:
            while time.monotonic() < until:
                chosen = self._rng.sample(known, AT_ONCE)
                calls = [ask_once(client, ask, streamed=self._rng.random() < 0.5) for ask, _ in chosen]
                await self._judge(calls, [answer for _, answer in chosen])

    async def _judge(self, calls: Sequence[object], wanted: Sequence[Answer | None]) -> None:
        outcomes = await asyncio.gather(*calls, return_exceptions=True)  # type: ignore[call-overload]
        for outcome, answer in zip(outcomes, wanted, strict=True):
            if isinstance(outcome, MmcachedError) and outcome.retryable:
                self._counts[outcome.code] += 1
                await asyncio.sleep(PAUSE_S)
            elif isinstance(outcome, BaseException):
                raise outcome
            elif answer is not None:
                assert_same([outcome], [answer])
                self._counts["right"] += 1


def all_asks() -> list[Ask]:
    return [ask for asks in random_rounds(SEED) for ask in asks]


async def ask_once(client: AsyncClient, ask: Ask, *, streamed: bool) -> Answer:
    """Return the answer; of a stream its tokens and rows must be those that came before, without a gap."""
    if ask.prompt is None:
        return await client.encode(**ask.files)
    if not streamed:
        return await client.generate(
            ask.prompt, max_tokens=ask.max_tokens, hidden_states=ask.hidden_states, **ask.files
        )
    wanted = RowsWanted(delivery="delta") if ask.hidden_states else False
    joined = Joined(keys=["hidden_states"] if ask.hidden_states else [])
    async for piece in client.generate_stream(ask.prompt, max_tokens=ask.max_tokens, hidden_states=wanted, **ask.files):
        joined.take(piece)
    return joined.whole()


async def answer_all(run_dir: Path) -> None:
    """Ask everything until all of it is answered at once, rightly."""
    give_up = time.monotonic() + RECOVERY_S
    async with AsyncClient(run_dir, connect_timeout_s=DEADLINE_S) as client:
        while True:
            calls = [ask_once(client, ask, streamed=index % 2 == 0) for index, ask in enumerate(all_asks())]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
            assert all(isinstance(error, MmcachedError) and error.retryable for error in errors), errors
            if not errors and len(stats_of(run_dir).engines) == NUM_ENGINES:
                assert_same(
                    [outcome for outcome in outcomes if not isinstance(outcome, BaseException)], [*uncached(SEED)]
                )
                return
            assert time.monotonic() < give_up, errors
            await asyncio.sleep(PAUSE_S)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
