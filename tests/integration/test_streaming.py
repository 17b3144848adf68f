"""Streaming through a whole service whose pool is too small for everybody: right tokens, once each, and no leftovers.

All roles are threads here; `test_disagreement` has the deaths.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch

from mmcached.client import AsyncClient, Client, Generation
from mmcached.client.results import Piece
from mmcached.gateway.requests.admission import Admission
from mmcached.wire.errors import MmcachedError, ServiceUnavailable
from mmcached.wire.stats import ServiceStats
from tests.engine.integrity import check_scheduler
from tests.frontend.integrity import check_frontend
from tests.integration.local_service import LocalService
from tests.integration.processes import DEADLINE_S, eventually, leases_of, small_config
from tests.integration.workloads import photo

MAX_REQUESTS = 4
MAX_TOKENS = 64


def tokens_in(pieces: Iterable[Piece]) -> list[int]:
    return [token for piece in pieces if isinstance(piece, list) for token in piece]


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    """Its blocks hold the longest request and a bit, so requests that run together preempt each other."""
    config = small_config(
        max_model_len=256, block_size=4, num_kv_blocks=66, max_num_batched_tokens=61, max_num_requests=MAX_REQUESTS
    )
    with (
        tempfile.TemporaryDirectory(prefix="mmc-", dir="/tmp") as scratch,
        LocalService(Path(scratch), config) as service,
    ):
        yield service


@pytest.fixture(scope="module")
def answers(service: LocalService) -> dict[str, Generation]:
    """Answers of generations that are alone and not streamed, by prompt; as many as fit at once are long."""
    found: dict[str, Generation] = {}
    with Client(service.run_dir) as client:
        for index in range(40):
            prompt = f"{index}: what is <image>?"
            found[prompt] = client.generate(prompt, [photo(0)], MAX_TOKENS, hidden_states=True)
            if len(long_ones(found)) == MAX_REQUESTS:
                break
    return found


def long_ones(answers: dict[str, Generation]) -> list[str]:
    return [prompt for prompt, answer in answers.items() if len(answer.tokens) > 40]


def at_rest(service: LocalService) -> ServiceStats:
    """Wait until nothing is open anywhere; return the figures."""
    with Client(service.run_dir) as client:
        stats = eventually(
            client.stats,
            lambda now: (
                (now.requests_open, now.engines[0].requests_running, now.engines[0].requests_waiting, leases_of(now))
                == (0, 0, 0, 0)
            ),
            "requests and leases return to 0",
        )
    check_scheduler(service.engine._scheduler)
    check_frontend(service.frontend)
    return stats


def test_streams_that_preempt_each_other_are_what_each_is_alone(
    service: LocalService, answers: dict[str, Generation]
) -> None:
    async def read(client: AsyncClient, prompt: str) -> None:
        stream = client.generate_stream(prompt, [photo(0)], MAX_TOKENS, hidden_states=True)
        *pieces, generation = [piece async for piece in stream]
        wanted = answers[prompt]
        assert isinstance(generation, Generation)
        assert tokens_in(pieces) == generation.tokens == wanted.tokens
        assert len(pieces) > 10, "they come as they are computed"
        assert wanted.hidden_states is not None
        assert generation.hidden_states is not None
        assert torch.equal(generation.hidden_states, wanted.hidden_states)

    async def read_all() -> None:
        async with AsyncClient(service.run_dir) as client:
            await asyncio.gather(*(read(client, prompt) for prompt in long_ones(answers)))

    before = at_rest(service).engines[0].preemptions
    asyncio.run(read_all())
    assert at_rest(service).engines[0].preemptions > before


def test_whoever_stops_early_ends_it_everywhere(service: LocalService, answers: dict[str, Generation]) -> None:
    prompt = long_ones(answers)[0]

    async def stop_early() -> None:
        async with AsyncClient(service.run_dir) as client:
            async for piece in client.generate_stream(prompt, [photo(0)], MAX_TOKENS):
                assert piece == answers[prompt].tokens[: len(tokens_in([piece]))]
                break

    before = at_rest(service)
    with Client(service.run_dir) as client:
        for _ in client.generate_stream(prompt, [photo(0)], MAX_TOKENS):
            break
        asyncio.run(stop_early())
        after = at_rest(service)
    assert after.engines[0].requests_finished == before.engines[0].requests_finished, "aborted, not finished in vain"
    assert after.requests_failed == before.requests_failed + 2


def test_a_slow_caller_holds_nobody_up_and_gets_everything(
    service: LocalService, answers: dict[str, Generation]
) -> None:
    """Its window is full after a while. What comes then waits in the frontend, and comes with the answer."""
    first, second, *_ = long_ones(answers)
    with Client(service.run_dir) as slow, Client(service.run_dir) as other:
        pieces = slow.generate_stream(first, [photo(0)], MAX_TOKENS)
        taken = [next(pieces)]
        assert other.generate(second, [photo(0)], MAX_TOKENS).tokens == answers[second].tokens
        at_rest(service)  # both generations are over, and nobody has taken what came of the first
        taken += list(pieces)
    assert tokens_in(taken) == answers[first].tokens
    assert len(taken) <= 3, "a piece that was taken, the rest, the generation"


@pytest.mark.parametrize("who", ["frontend", "engine"])
def test_refusals_for_want_of_room_are_retryable_and_room_comes_back(
    service: LocalService, answers: dict[str, Generation], monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """The frontend refuses. If it would not, since it has other engines too, the engine itself does."""
    if who == "engine":
        monkeypatch.setattr(Admission, "check_room", lambda admission, request: None)

    async def crowd() -> MmcachedError:
        async with AsyncClient(service.run_dir) as client, AsyncClient(service.run_dir) as other:
            prompts = long_ones(answers)
            streams = [asyncio.create_task(_tokens(client, prompt)) for prompt in prompts]
            while (await other.stats()).requests_open < MAX_REQUESTS:
                assert not any(stream.done() for stream in streams)
            with pytest.raises(ServiceUnavailable) as caught:
                await other.generate("one <image> too many", [photo(1)], 1)
            streams.pop().cancel()
            while not await _is_answered(other):
                pass
            assert await asyncio.gather(*streams) == [answers[prompt].tokens for prompt in prompts[:-1]]
            return caught.value

    error = asyncio.run(asyncio.wait_for(crowd(), DEADLINE_S))
    assert error.retryable
    assert error.details == {"field": "max_num_requests", "value": MAX_REQUESTS, "limit": MAX_REQUESTS}
    assert ("the engine" in str(error)) == (who == "engine")
    at_rest(service)


async def _tokens(client: AsyncClient, prompt: str) -> list[int]:
    return tokens_in([piece async for piece in client.generate_stream(prompt, [photo(0)], MAX_TOKENS)])


async def _is_answered(client: AsyncClient) -> bool:
    try:
        return bool((await client.generate("and <image> now", [photo(1)], 1)).tokens)
    except ServiceUnavailable:
        return False
