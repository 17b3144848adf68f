"""Prompts that kill their workers, in a real service: they fail, streams beside them go on right, row for row.

One service for all of it: each death takes seconds, and the supervisor's count of them is what it is about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import AsyncClient, Client, Generation, RowsWanted
from mmcached.wire.errors import PoisonousRequest
from tests.integration.deadly_worker import POISON
from tests.integration.faulty_service import DEADLY_WORKER, faulty_service
from tests.integration.processes import DEADLINE_S, eventually, leases_of, role_pids, small_config, stats_of
from tests.integration.streams import Joined
from tests.integration.workloads import assert_same, photo

INNOCENTS = [f"{index}: what is <image>, at length?" for index in range(6)]
MAX_TOKENS = 80


@pytest.fixture
def service(run_dir: Path, tmp_path: Path) -> Iterator[ChildService]:
    config = small_config(world_size=1, restart_backoff_s=0.05)
    with faulty_service(run_dir / "s", config, tmp_path / "config.json", DEADLY_WORKER) as service:
        yield service


async def stream(client: AsyncClient, prompt: str, has_begun: asyncio.Event) -> Joined:
    """Return the tokens of a generation and its streamed rows, none of which has come after its token."""
    joined = Joined()
    async for piece in client.generate_stream(
        prompt, [photo(0)], MAX_TOKENS, hidden_states=RowsWanted(delivery="delta"), timeout_s=DEADLINE_S
    ):
        joined.take(piece)
        if joined.tokens:
            has_begun.set()
    last_of_prompt = joined.whole().num_prompt_tokens - 1  # its row gives the first token
    late = [(first, num) for first, num in joined.came if max(0, first - last_of_prompt) < num]
    assert not late, f"rows after the token that they gave: {late}"
    return joined


async def among_innocents(
    run_dir: Path, poisons: list[str]
) -> tuple[list[Generation], list[Generation | BaseException]]:
    """Return what innocent streams and, begun while all of them run, poisonous requests come to."""
    async with AsyncClient(run_dir) as client:
        begun = [asyncio.Event() for _ in INNOCENTS]
        innocents = [
            asyncio.create_task(stream(client, prompt, event)) for prompt, event in zip(INNOCENTS, begun, strict=True)
        ]
        waiting = asyncio.gather(*(event.wait() for event in begun))
        await asyncio.wait_for(waiting, DEADLINE_S)
        calls = [client.generate(prompt, max_tokens=4, timeout_s=DEADLINE_S) for prompt in poisons]
        failed = await asyncio.gather(*calls, return_exceptions=True)
        return [joined.whole() for joined in await asyncio.gather(*innocents)], failed


@pytest.mark.slow
def test_who_kills_workers_fails_and_everybody_else_is_answered_rightly(service: ChildService) -> None:
    wanted, _ = asyncio.run(among_innocents(service.run_dir, []))
    answers, failed = asyncio.run(among_innocents(service.run_dir, [f"one {POISON}", f"two {POISON}"]))
    assert_same(list(answers), list(wanted))
    assert [type(error) for error in failed] == [PoisonousRequest] * 2, failed
    workers = role_pids(service.process.pid)
    with Client(service.run_dir) as client, pytest.raises(PoisonousRequest):
        client.generate(f"one {POISON}", max_tokens=4)
    assert role_pids(service.process.pid) == workers, "it is known"
    stats = eventually(lambda: stats_of(service.run_dir), lambda s: leases_of(s) == 0, "leases at rest")
    assert stats.requests_open == 0
    assert service.stop() == 0
