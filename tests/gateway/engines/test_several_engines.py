"""Two engines behind one frontend: who gets a request, what a death ends, and what a hung one keeps from nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mmcached.cache.hashing.block_hash import extend_block_hashes
from mmcached.engine import Request
from mmcached.gateway.caches.item_cache import OutgoingItem
from mmcached.gateway.engines.engine_content import EngineContent
from mmcached.gateway.processing.media import Medium
from mmcached.gateway.requests.hashed_prompt import PromptHasher
from mmcached.gateway.requests.open_requests import OpenRequest
from mmcached.gateway.requests.request_builder import build_prompt
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages import frontend_from_engines as from_engine
from mmcached.wire.messages.parts import Inline, StreamedTokens
from mmcached.wire.vocabulary import IMAGE_TOKEN_ID
from tests.clock import Clock
from tests.doubles.engine import WireEngine, checksum
from tests.frontend.fake_peers import Bench, png
from tests.frontend.integrity import check_frontend

CONFIG = ServiceConfig(
    mm_processor_cache_gb=1 / 1024,
    mm_shm_cache_max_object_size_mb=1,
    mm_shm_inline_max_kb=0,
    store_gb=0,
    data_parallel_size=2,
)
TICK_S = 0.01


@pytest.fixture
def policy(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", "least_loaded"))


@pytest.fixture
def bench(run_dir: Path, clock: Clock, policy: str) -> Iterator[Bench]:
    config = msgspec.structs.replace(CONFIG, routing_policy=policy)
    with Bench(run_dir, config, clock) as bench:
        yield bench
        check_frontend(bench.frontend)


@pytest.fixture
def engines(bench: Bench) -> list[WireEngine]:
    both = [bench.connect_engine(index=index) for index in range(2)]
    bench.pump(lambda: len(bench.stats().engines) == 2)
    return both


def generate(bench: Bench, number: int, length: int, *, is_streamed: bool = False) -> None:
    window = 4 if is_streamed else 0
    bench.client.send(
        to_frontend.Generate(bench.client_id, number, "x" * length, 4, None, 60.0, stream_window=window), []
    )


def who_gets_it(bench: Bench, engines: list[WireEngine]) -> tuple[int, int]:
    """Return the index of the engine that got the next request, and the request's number there."""

    def has_come() -> bool:
        for engine in engines:
            engine.receive()
        return any(engine.backlog for engine in engines)

    bench.pump(has_come)
    index = next(index for index, engine in enumerate(engines) if engine.backlog)
    return index, bench.from_frontend(engines[index], to_engine.AddRequest).request_id


def test_the_engine_with_the_fewest_tokens_to_compute_gets_the_next(bench: Bench, engines: list[WireEngine]) -> None:
    chosen = []
    for number, length in enumerate((100, 30, 30, 30, 30)):
        generate(bench, number, length)
        chosen.append(who_gets_it(bench, engines))
    assert [index for index, _ in chosen] == [0, 1, 1, 1, 1]
    engines[0].channel.send(from_engine.RequestGenerated(chosen[0][1], [5], "length", 0))
    bench.answer(to_client.Generated)
    generate(bench, 9, 30)
    assert who_gets_it(bench, engines)[0] == 0


def test_what_has_its_first_token_is_computed(bench: Bench, engines: list[WireEngine]) -> None:
    generate(bench, 1, 100, is_streamed=True)
    index, number = who_gets_it(bench, engines)
    generate(bench, 2, 50)
    assert who_gets_it(bench, engines)[0] == 1 - index
    committed = from_engine.TokensCommitted([StreamedTokens(number, 0, [7])], [])
    engines[index].channel.send(committed)
    bench.answer(to_client.Tokens)
    generate(bench, 3, 50)
    assert who_gets_it(bench, engines)[0] == index


@pytest.mark.parametrize("policy", ["round_robin"], indirect=True)
def test_each_in_turn(bench: Bench, engines: list[WireEngine]) -> None:
    chosen = []
    for number, length in enumerate((10, 10, 200, 10, 200, 10)):
        generate(bench, number, length)
        chosen.append(who_gets_it(bench, engines)[0])
    assert chosen == [0, 1] * 3


def image(key: str, name: str | None = None) -> Medium:
    return Medium("image", b"", "images[0]", name, key=key)


def test_what_an_engine_has_to_do_for_a_prompt() -> None:
    message = to_frontend.Generate("client", 1, "", 4, None, 60.0, image_ids=[None, "name", None])
    token_ids = [7, IMAGE_TOKEN_ID, *range(10, 30), IMAGE_TOKEN_ID, IMAGE_TOKEN_ID, 9]
    request = OpenRequest(
        1, b"", message, [image("first"), image("second", "name"), image("stored")], 1.0, token_ids=token_ids
    )
    items = [
        OutgoingItem("first", 100, 20, None),
        OutgoingItem("second", 100, 8, None),
        OutgoingItem("stored", 100, 30, None, has_output=True),
    ]
    hasher, prompt = PromptHasher(CONFIG), build_prompt(request, items, CONFIG)
    hasher.extend(prompt)
    assert (prompt.num_tokens, len(prompt.block_hashes)) == (80, 4), "the fifth has the last token"
    nothing, some = EngineContent(9, 9), EngineContent(9, 9)
    some.take(from_engine.CacheChanged(True, [*prompt.block_hashes[:2], prompt.block_hashes[3]], [], ["second:8"]))
    assert hasher.num_uncached(prompt, nothing) == 80 + 20 + 8
    assert hasher.num_uncached(prompt, some) == 80 - 32


def hold(bench: Bench, engine: WireEngine, add: to_engine.AddRequest, *, blocks: int, has_items: bool = False) -> None:
    """Let an engine say that it holds so many of a request's first blocks, and perhaps its items."""
    request = Request(1, "generate", add.prompt_token_ids, add.features, max_tokens=1, tenant=add.tenant)
    extend_block_hashes(request, CONFIG.block_size)
    items = [feature.mm_hash for feature in add.features] if has_items else []
    engine.channel.send(from_engine.CacheChanged(True, request.block_hashes[:blocks], [], items))
    bench.stats()


@pytest.mark.parametrize("policy", ["cache_aware"], indirect=True)
def test_a_prompt_goes_where_most_of_it_is_unless_that_engine_has_much_to_do(
    bench: Bench, engines: list[WireEngine]
) -> None:
    images = [png(1), png(2, (90, 70))]
    bench.generate(1, images)
    index, number = who_gets_it(bench, engines)
    engines[index].channel.send(from_engine.RequestGenerated(number, [5], "length", 0))
    bench.answer(to_client.Generated)
    bench.generate(2, images)
    other = 1 - index
    add = bench.from_frontend(engines[other], to_engine.AddRequest)
    engines[other].channel.send(from_engine.RequestGenerated(add.request_id, [5], "length", 0))
    bench.answer(to_client.Generated)
    num_blocks = (len(add.prompt_token_ids) - 1) // CONFIG.block_size
    if num_blocks:
        hold(bench, engines[other], add, blocks=num_blocks)
    hold(bench, engines[other], add, blocks=num_blocks, has_items=True)
    for number in (3, 4):
        bench.generate(number, images)
        add = bench.from_frontend(engines[other], to_engine.AddRequest)
        request = Request(1, "generate", add.prompt_token_ids, add.features, max_tokens=1)
        extend_block_hashes(request, CONFIG.block_size)
        assert add.block_hashes == request.block_hashes[:num_blocks], "the engine need not make them again"
        engines[other].channel.send(from_engine.RequestGenerated(add.request_id, [5], "length", 0))
        bench.answer(to_client.Generated)
    generate(bench, 5, 1000)
    assert who_gets_it(bench, engines)[0] == index, "its turn"
    generate(bench, 6, 1500)
    assert who_gets_it(bench, engines)[0] == other
    bench.generate(7, images)
    assert who_gets_it(bench, engines)[0] == index, "to compute all of it takes less time than to wait"


@pytest.mark.parametrize("policy", ["cache_aware"], indirect=True)
def test_nothing_is_hashed_for_an_embedding(bench: Bench, engines: list[WireEngine]) -> None:
    bench.client.send(to_frontend.Encode(bench.client_id, 1, 60.0), [png(1, (90, 70))] * 16)
    add = bench.from_frontend(engines[0], to_engine.AddRequest)
    assert len(add.prompt_token_ids) > CONFIG.block_size
    assert add.block_hashes == []


@pytest.mark.parametrize("policy", ["cache_aware"], indirect=True)
def test_what_a_flushed_or_dead_engine_held_is_forgotten(bench: Bench, engines: list[WireEngine]) -> None:
    generate(bench, 1, 200)
    add = bench.from_frontend(engines[0], to_engine.AddRequest)
    engines[0].channel.send(from_engine.RequestGenerated(add.request_id, [5], "length", 0))
    bench.answer(to_client.Generated)
    hold(bench, engines[0], add, blocks=5)
    hold(bench, engines[0], add, blocks=0)
    hold(bench, engines[1], add, blocks=3)
    for number in (2, 3):
        generate(bench, number, 200)
        again = bench.from_frontend(engines[1], to_engine.AddRequest)
        engines[1].channel.send(from_engine.RequestGenerated(again.request_id, [5], "length", 0))
        bench.answer(to_client.Generated)
    bench.engine_dies(engines.pop(1))
    engines.append(bench.connect_engine(index=1))
    hold(bench, engines[0], add, blocks=1)
    generate(bench, 4, 200)
    assert who_gets_it(bench, engines)[0] == 0


def test_a_dead_engine_s_requests_end_and_the_next_go_elsewhere_at_once(
    bench: Bench, engines: list[WireEngine]
) -> None:
    dying = 0
    for number in (1, 2):
        bench.generate(number, [png(number)])
        dying, _ = who_gets_it(bench, engines)
    spared = engines[1 - dying]
    bench.engine_dies(engines[dying])
    bench.generate(3, [])
    add = bench.from_frontend(spared, to_engine.AddRequest)
    failed = bench.answer(to_client.Failed)
    assert (failed.request_id, failed.error.code, failed.error.retryable) == (2, "request_aborted", True)
    spared.channel.send(from_engine.RequestGenerated(add.request_id, [5], "length", 0))
    assert bench.answer(to_client.Generated).request_id == 3
    assert bench.stats().requests_open == 1, "the other engine's first goes on"


def test_a_flush_is_answered_when_both_have_forgotten(bench: Bench, engines: list[WireEngine]) -> None:
    bench.client.send(to_frontend.Flush(6))
    first, second = (bench.from_frontend(engine, to_engine.FlushEngine) for engine in engines)
    engines[0].channel.send(from_engine.EngineFlushed(first.token))
    bench.stats()
    engines[1].channel.send(from_engine.EngineFlushed(second.token))
    assert bench.answer(to_client.Flushed).request_id == 6


def test_a_flush_needs_no_answer_of_an_engine_that_died(bench: Bench, engines: list[WireEngine], clock: Clock) -> None:
    bench.client.send(to_frontend.Flush(6))
    flush = bench.from_frontend(engines[0], to_engine.FlushEngine)
    bench.from_frontend(engines[1], to_engine.FlushEngine)
    engines[0].channel.send(from_engine.EngineFlushed(flush.token))
    bench.engine_dies(engines[1])
    clock.now += 1
    assert bench.answer(to_client.Flushed).request_id == 6


def answer_probe(bench: Bench, engine: WireEngine) -> None:
    probe = bench.from_frontend(engine, to_engine.ProbeEngine)
    assert not isinstance(probe.payload, Inline)
    read = checksum(bench.frontend.store.announcement, probe.payload)
    engine.channel.send(from_engine.EngineProbed(probe.token, [read]))


def test_a_probe_goes_through_both(bench: Bench, engines: list[WireEngine]) -> None:
    bench.client.send(to_frontend.Probe(5, 10.0))
    for engine in engines:
        answer_probe(bench, engine)
    assert bench.answer(to_client.Probed) == to_client.Probed(5, [0, 1], 2, [])
    assert bench.stats().items.entries == 0


def test_who_asks_hears_of_the_engine_that_works_while_the_other_hangs(
    bench: Bench, engines: list[WireEngine], clock: Clock
) -> None:
    """Though somebody with more patience waits for the one that hangs."""
    bench.client.send(to_frontend.Probe(1, 60.0))
    bench.from_frontend(engines[0], to_engine.ProbeEngine)
    answer_probe(bench, engines[1])
    bench.client.send(to_frontend.Probe(2, 1.0))
    answer_probe(bench, engines[1])
    bench.stats()
    clock.now += 2
    probed = bench.answer(to_client.Probed)
    assert (probed.request_id, probed.engines) == (2, [1])
    assert probed.faults == ["probe of engine 0: no answer within 1.0 s"]
    clock.now += 60
    probed = bench.answer(to_client.Probed)
    assert (probed.request_id, probed.engines) == (1, [1])


def test_a_probe_says_which_engine_died(bench: Bench, engines: list[WireEngine], clock: Clock) -> None:
    bench.client.send(to_frontend.Probe(5, 10.0))
    for engine in engines:
        bench.from_frontend(engine, to_engine.ProbeEngine)
    bench.engine_dies(engines[0])
    clock.now += 1
    bench.pump(lambda: len(bench.stats().engines) == 1)
    clock.now += 10
    failed = bench.answer(to_client.Failed)
    assert "engine 0 died" in failed.error.message
    assert "probe of engine 1" in failed.error.message
    assert failed.error.retryable
