"""Hidden states as they are computed, through whole services: each row once and in order, and bit for bit the rows of a
service without caches; cold and warm, preempted, to a client that reads slowly. (With workers killed: `test_poison`.)
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import torch

from mmcached.cli.demo.run import all_caches_off
from mmcached.client import AsyncClient, Client, Generation, RowRange, RowsWanted
from mmcached.gateway.requests.admission import Admission
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import InvalidRequest, MmcachedError, ServiceUnavailable
from mmcached.wire.model_config import ModelConfig
from mmcached.wire.stats import ServiceStats
from mmcached.worker.steps.runner import ModelRunner
from tests.engine.integrity import check_scheduler
from tests.frontend.integrity import check_frontend
from tests.integration.local_service import LocalService, scratch_service
from tests.integration.processes import DEADLINE_S, eventually, leases_of, small_config, stats_of
from tests.integration.streams import Joined
from tests.integration.workloads import photo

KEYS = ["hidden_states", "hidden_states.layer_0", "hidden_states.layer_1"]
DELTA = RowsWanted(KEYS, delivery="delta")
PROMPT = "what is <image>, and what is behind it? Tell me at length, and then tell me again"
MAX_TOKENS = 64


def config(**changes: object) -> ServiceConfig:
    """Rows of two layers beside the last; blocks that hold the longest request and a bit; chunks of 37 tokens."""
    settings: dict[str, object] = {
        "max_model_len": 256,
        "block_size": 4,
        "num_kv_blocks": 66,
        "max_num_batched_tokens": 37,
        "model": ModelConfig(num_layer_outputs=2),
    }
    return small_config(**(settings | changes))


@pytest.fixture(scope="module")
def wanted() -> dict[str, Generation]:
    """What a service without caches answers, by prompt; the first is `PROMPT`."""
    with scratch_service(all_caches_off(config(world_size=1))) as (_, client):
        prompts = [PROMPT, *(f"{index}: {PROMPT}" for index in range(7))]
        every = {
            text: client.generate(text, [photo(0)], MAX_TOKENS, hidden_states=RowsWanted(KEYS)) for text in prompts
        }
    assert len(every[PROMPT].tokens) > 40
    return {text: answer for text, answer in every.items() if len(answer.tokens) > 40}


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with scratch_service(config()) as (service, _):
        yield service


def assert_is(joined: Joined, wanted: Generation, max_tokens: int = MAX_TOKENS) -> None:
    """Check that it is what a service without caches answers, from the first row that was wanted on."""
    found = joined.whole()
    assert found.tokens == wanted.tokens[:max_tokens]
    for key, rows in found.rows.items():
        assert torch.equal(rows.tensor, wanted.rows[key].tensor[joined.first : rows.end])


def stream(client: Client, prompt: str = PROMPT, rows: RowsWanted = DELTA) -> Joined:
    joined = Joined(rows.first, rows.keys)
    for piece in client.generate_stream(prompt, [photo(0)], MAX_TOKENS, hidden_states=rows):
        joined.take(piece)
    return joined


def at_rest(run_dir: Path) -> ServiceStats:
    return eventually(
        lambda: stats_of(run_dir),
        lambda now: (now.requests_open, now.engines[0].requests_running, leases_of(now)) == (0, 0, 0),
        "requests and leases return to 0",
    )


def assert_nothing_kept(service: LocalService) -> None:
    at_rest(service.run_dir)
    check_scheduler(service.engine._scheduler)
    check_frontend(service.frontend)


def test_rows_come_as_they_are_computed_cold_and_warm(service: LocalService, wanted: dict[str, Generation]) -> None:
    with Client(service.run_dir) as client:
        client.flush()
        answer = wanted[PROMPT]
        for is_warm in (False, True):
            joined = stream(client)
            assert_is(joined, answer)
            assert joined.generation is not None
            assert (joined.generation.num_cached_tokens > 0) == is_warm
            assert joined.num_ranges > 10, "they come as they are computed"
            first = joined.parts[KEYS[0]][0]
            assert (first.end < answer.num_prompt_tokens) != is_warm, "a cold prompt is more than one chunk"
        full = client.generate(PROMPT, [photo(0)], MAX_TOKENS, hidden_states=RowsWanted(KEYS))
        assert all(torch.equal(full.rows[key].tensor, answer.rows[key].tensor) for key in KEYS)
    assert_nothing_kept(service)


@pytest.mark.parametrize("first", [1, 37, -1])
def test_rows_before_the_first_that_is_wanted_are_not_sent(
    service: LocalService, wanted: dict[str, Generation], first: int
) -> None:
    """They need not be in the store, nor be computed again if it is warm: the client has them."""
    first %= wanted[PROMPT].num_prompt_tokens
    with Client(service.run_dir) as client:
        client.flush()
        for keys in (KEYS, KEYS[1:2]):
            joined = stream(client, rows=RowsWanted(keys, first, "delta"))
            assert_is(joined, wanted[PROMPT])
            assert all(parts[0].first == first for parts in joined.parts.values())


def test_all_rows_of_a_stream_come_with_the_answer_if_they_are_wanted_in_full(
    service: LocalService, wanted: dict[str, Generation]
) -> None:
    with Client(service.run_dir) as client:
        joined = stream(client, rows=RowsWanted(KEYS))
        assert_is(joined, wanted[PROMPT])
        assert joined.num_ranges == 1


def test_streams_that_preempt_each_other_tell_no_row_twice(
    service: LocalService, wanted: dict[str, Generation]
) -> None:
    async def read(client: AsyncClient, prompt: str) -> None:
        joined = Joined(keys=KEYS)
        async for piece in client.generate_stream(prompt, [photo(0)], MAX_TOKENS, hidden_states=DELTA):
            joined.take(piece)
        assert_is(joined, wanted[prompt])

    async def read_all() -> None:
        async with AsyncClient(service.run_dir) as client:
            await asyncio.gather(*(read(client, prompt) for prompt in wanted))

    before = at_rest(service.run_dir).engines[0].preemptions
    asyncio.run(asyncio.wait_for(read_all(), DEADLINE_S))
    assert at_rest(service.run_dir).engines[0].preemptions > before
    assert_nothing_kept(service)


def test_forgetting_all_caches_in_the_middle_tells_no_row_twice(
    service: LocalService, wanted: dict[str, Generation]
) -> None:
    with Client(service.run_dir) as client, Client(service.run_dir) as other:
        joined = Joined(keys=KEYS)
        for number, piece in enumerate(client.generate_stream(PROMPT, [photo(0)], MAX_TOKENS, hidden_states=DELTA)):
            joined.take(piece)
            if number % 20 == 10:
                other.flush()
            if number % 20 == 15:
                other.invalidate()
        assert_is(joined, wanted[PROMPT])


def test_a_client_that_reads_slowly_holds_nobody_up_and_gets_everything(
    service: LocalService, wanted: dict[str, Generation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window for three steps: the rest waits in the frontend and comes with the answer."""
    answer, streams = wanted[PROMPT], service.gateway.requests.streams
    row_bytes = len(KEYS) * 4 * service.config.model.hidden_size
    monkeypatch.setattr(streams, "row_window_bytes", row_bytes * (answer.num_prompt_tokens + 3))
    with Client(service.run_dir) as slow, Client(service.run_dir) as other:
        slow.generate(PROMPT, [photo(0)], 1)
        pieces = slow.generate_stream(PROMPT, [photo(0)], MAX_TOKENS, hidden_states=DELTA)
        joined = Joined(keys=KEYS)
        joined.take(next(pieces))
        assert other.generate(PROMPT, [photo(0)], MAX_TOKENS).tokens == answer.tokens
        at_rest(service.run_dir)  # both are over, and nobody has taken what came of the first
        for piece in pieces:
            joined.take(piece)
    assert_is(joined, answer)
    assert joined.generation is not None
    assert len(joined.generation.rows[KEYS[0]].tensor) > 20
    assert_nothing_kept(service)


def test_a_window_that_is_smaller_than_any_piece_keeps_a_stream_flowing(
    service: LocalService, wanted: dict[str, Generation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client says what it has taken for half a window of its own: here for none, and it hears of all of it."""
    monkeypatch.setattr(service.gateway.requests.streams, "row_window_bytes", 1)
    monkeypatch.setattr("mmcached.client.token_stream.TokenStream.__init__.__kwdefaults__", {"row_window_bytes": 1})
    with Client(service.run_dir) as client:
        joined = stream(client)
    assert_is(joined, wanted[PROMPT])
    assert joined.num_ranges > 2


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 40))])
def test_random_consumers_of_random_services(
    run_dir: Path, wanted: dict[str, Generation], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Some are slow, some stop early, windows are of any size, and the caches may be emptied at any time."""
    rng = random.Random(seed)
    settings = config(
        world_size=1,
        max_num_batched_tokens=rng.choice([7, 37, 300]),
        tensor_prefix_cache_gb=rng.choice([0.0, 1e-5, 0.25]),
        enable_prefix_caching=rng.random() < 0.8,
    )

    async def read(client: AsyncClient, prompt: str, max_tokens: int) -> None:
        keys = rng.sample(KEYS, rng.randint(1, 3))
        first = rng.choice([0, rng.randrange(wanted[prompt].num_prompt_tokens)])
        joined, patience = Joined(first, keys), rng.choice([2, 10, 1000, 1000, 1000])
        pause_s = rng.choice([0.0, 0.0, 0.001, 0.01])
        pieces = client.generate_stream(
            prompt, [photo(0)], max_tokens, hidden_states=RowsWanted(keys, first, "delta"), priority=rng.randint(-1, 1)
        )
        async with aclosing(pieces):
            async for piece in pieces:
                joined.take(piece)
                await asyncio.sleep(pause_s)
                patience -= 1
                if not patience:
                    return
        assert_is(joined, wanted[prompt], max_tokens)

    async def disturb(client: AsyncClient) -> None:
        for _ in range(3):
            await asyncio.sleep(rng.random() / 20)
            await (client.flush if rng.random() < 0.5 else client.invalidate)()

    async def play() -> None:
        async with AsyncClient(run_dir) as client, AsyncClient(run_dir) as other:
            for _ in range(2):
                asks = [
                    (rng.choice([client, other]), rng.choice(list(wanted)), rng.choice([1, 9, 64])) for _ in range(8)
                ]
                await asyncio.gather(*(read(*ask) for ask in asks), disturb(other))

    window = rng.choice([1, 1000, 5000, 1 << 20])
    monkeypatch.setattr(
        "mmcached.client.token_stream.TokenStream.__init__.__kwdefaults__", {"row_window_bytes": window}
    )
    with LocalService(run_dir, settings) as service:
        service.gateway.requests.streams.row_window_bytes = window
        asyncio.run(asyncio.wait_for(play(), DEADLINE_S))
        assert_nothing_kept(service)


def test_whoever_stops_early_ends_it_everywhere(service: LocalService) -> None:
    before = at_rest(service.run_dir)
    with Client(service.run_dir) as client:
        pieces = client.generate_stream(PROMPT, [photo(0)], MAX_TOKENS, hidden_states=DELTA)
        assert isinstance(next(pieces), RowRange)
        pieces.close()
        assert_nothing_kept(service)
    after = at_rest(service.run_dir)
    assert after.engines[0].requests_finished == before.engines[0].requests_finished, "aborted, not finished in vain"
    assert after.requests_failed == before.requests_failed + 1


@pytest.mark.parametrize("who", ["frontend", "engine"])
def test_refusals_for_want_of_room_are_retryable_and_room_comes_back(
    run_dir: Path, wanted: dict[str, Generation], monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """The frontend refuses. If it would not, since it has other engines too, the engine itself does."""
    if who == "engine":
        monkeypatch.setattr(Admission, "check_room", lambda admission, request: None)
    prompts = list(wanted)[:4]
    may_compute, execute = threading.Event(), ModelRunner.execute
    may_compute.set()

    def execute_later(runner: ModelRunner, *step: Any) -> Any:
        may_compute.wait(DEADLINE_S)
        return execute(runner, *step)

    monkeypatch.setattr(ModelRunner, "execute", execute_later)

    async def tokens(client: AsyncClient, prompt: str) -> list[int]:
        joined = Joined(keys=[])
        async for piece in client.generate_stream(prompt, [photo(0)], MAX_TOKENS):
            joined.take(piece)
        return joined.whole().tokens

    async def is_answered(client: AsyncClient) -> bool:
        try:
            return bool((await client.generate("and <image> now", [photo(1)], 1)).tokens)
        except ServiceUnavailable:
            return False

    async def num_in_engine(client: AsyncClient) -> int:
        (engine,) = (await client.stats()).engines
        return engine.requests_running + engine.requests_waiting

    async def crowd() -> MmcachedError:
        async with AsyncClient(run_dir) as client, AsyncClient(run_dir) as other:
            may_compute.clear()  # until the one too many has been refused, none of the others ends
            streams = [asyncio.create_task(tokens(client, prompt)) for prompt in prompts]
            try:
                while await num_in_engine(other) < len(prompts):
                    assert not any(stream.done() for stream in streams)
                with pytest.raises(ServiceUnavailable) as caught:
                    await other.generate("one <image> too many", [photo(1)], 1)
            finally:
                may_compute.set()
            streams.pop().cancel()
            while not await is_answered(other):
                pass
            assert await asyncio.gather(*streams) == [wanted[prompt].tokens for prompt in prompts[:-1]]
            return caught.value

    with LocalService(run_dir, config(max_num_requests=len(prompts))) as service:
        error = asyncio.run(asyncio.wait_for(crowd(), DEADLINE_S))
        assert_nothing_kept(service)
    assert error.retryable
    assert error.details == {"field": "max_num_requests", "value": len(prompts), "limit": len(prompts)}
    assert ("the engine" in str(error)) == (who == "engine")


BAD: list[tuple[dict[str, Any], str, object, str]] = [
    ({"keys": ["hidden_states", "logits"]}, "rows.keys", "['hidden_states', 'logits']", "hidden_states.layer_1"),
    ({"keys": ["hidden_states"] * 2}, "rows.keys", "['hidden_states', 'hidden_states']", "each once"),
    ({"keys": []}, "rows.keys", "[]", "1 to 64"),
    ({"keys": "hidden_states"}, "rows.keys", "hidden_states", "a list"),
    ({"keys": ["k" * 300]}, "rows.keys[0]", "k" * 80, "256"),
    ({"first": 6, "delivery": "delta"}, "rows.first", 6, "below the prompt's length, 6"),
    ({"first": -1, "delivery": "delta"}, "rows.first", -1, "from 0 to"),
    ({"first": 1 << 70, "delivery": "delta"}, "rows.first", 1 << 70, "from 0 to"),
    ({"first": 1.5, "delivery": "delta"}, "rows.first", "1.5", "an integer from 0"),
    ({"first": 2}, "rows.first", 2, "full"),
    ({"delivery": "some"}, "rows.delivery", "some", '"delta"'),
]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_bad_input_names_field_value_and_limit_and_the_service_goes_on(
    service: LocalService, is_streamed: bool
) -> None:
    with Client(service.run_dir) as client:

        def ask(wanted: RowsWanted) -> object:
            if is_streamed:
                return next(client.generate_stream("hello", hidden_states=wanted))
            return client.generate("hello", hidden_states=wanted)

        for named, where, value, limit in BAD:
            with pytest.raises(InvalidRequest) as caught:
                ask(RowsWanted(**named))
            details = caught.value.details
            assert (details["field"], details["value"]) == (where, value)
            assert limit in str(details["limit"])
        assert client.generate("hello", max_tokens=1, hidden_states=RowsWanted(KEYS)).rows.keys() == set(KEYS)
