"""Clips that another host has cut: a request waits for the list of their slices before they are opened, once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from mmcached.cache.store_keys import output_key
from mmcached.wire.config import ServiceConfig
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages.second_level import Fetch
from tests.clips.fake_decoders import FakeClipDecoders, clip, video
from tests.clock import Clock
from tests.doubles.engine import WireEngine
from tests.frontend.fake_peers import Bench
from tests.frontend.second_levels import FakeSecondLevel

CONFIG = ServiceConfig(
    mm_processor_workers=1,
    mm_processor_cache_gb=1 / 1024,
    mm_shm_inline_max_kb=0,
    store_gb=1 / 1024,
    store_l2="redis://nowhere",
    limits=LimitsConfig(l2_timeout_ms=50),
)
FINGERPRINT = "f" * 32
KEYS = ["0" * 64, "1" * 64]
LISTED = {"slices": [[KEYS[0], 3, 0.0, 1.0], [KEYS[1], 2, 1.0, 2.0]]}
TICK_S = 1e-6


@pytest.fixture
def decoders(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> Iterator[FakeClipDecoders]:
    decoders = FakeClipDecoders(monkeypatch)
    yield decoders
    decoders.release()


@pytest.fixture
def engine(bench: Bench, decoders: FakeClipDecoders) -> WireEngine:
    return bench.connect_engine(encoder_fingerprint=FINGERPRINT)


@pytest.fixture
def level(bench: Bench, engine: WireEngine) -> FakeSecondLevel:
    return FakeSecondLevel(bench)


def ask(bench: Bench, number: int = 1) -> None:
    message = to_frontend.Encode(bench.client_id, number, 60.0, clips=[video()], takes_keys=True)
    bench.client.send(message, [clip("ab")])


def miss_all(level: FakeSecondLevel, *first: Fetch) -> None:
    """Say that no host has what is asked for, and what is asked for then: the outputs."""
    for fetch in first:
        level.end(fetch, "miss")
    for fetch in level.orders().fetches:
        assert fetch.key.startswith("encoder/")
        level.end(fetch, "miss")


def sent(bench: Bench, engine: WireEngine) -> to_engine.AddRequest:
    return bench.from_frontend(engine, to_engine.AddRequest)


def test_a_clip_that_another_host_has_encoded_is_not_opened(
    bench: Bench, level: FakeSecondLevel, decoders: FakeClipDecoders
) -> None:
    ask(bench)
    fetch = level.fetch()
    assert fetch.key.startswith("clip/")
    assert not fetch.claims
    level.put(fetch, LISTED)
    outputs = level.orders().fetches
    assert [each.key for each in outputs] == [output_key(FINGERPRINT, key) for key in KEYS]
    for each, num_rows in zip(outputs, (3, 2), strict=True):
        level.put(each, {"embeddings": np.zeros((num_rows, 64), np.int32)})
    answer = bench.answer(to_client.Encoded)
    assert answer.outputs == [each.key for each in outputs]
    assert answer.clips == [[(0.0, 1.0), (1.0, 2.0)]]
    assert decoders.planned == []


@pytest.mark.usefixtures("decoders")
@pytest.mark.parametrize("outcome", ["miss", "failed", "nothing is heard", "another record", "a flush", "death"])
def test_a_clip_that_no_host_knows_is_cut_here_and_asked_for_once(
    bench: Bench, level: FakeSecondLevel, engine: WireEngine, clock: Clock, outcome: str
) -> None:
    ask(bench)
    fetch = level.fetch()
    if outcome == "nothing is heard":
        clock.now += 0.05
    elif outcome == "another record":
        level.put(fetch, {"slices": "none"})
    elif outcome == "a flush":
        bench.frontend.store.flush(is_new_epoch=False)
    elif outcome == "death":
        level.die()
    else:
        level.end(fetch, outcome)  # type: ignore[arg-type]
    if outcome not in ("nothing is heard", "death"):
        miss_all(level)
    assert len(sent(bench, engine).features) == 2


def test_what_is_cut_here_is_saved_for_other_hosts_and_no_slice(
    bench: Bench, level: FakeSecondLevel, engine: WireEngine, clock: Clock
) -> None:
    ask(bench)
    fetch = level.fetch()
    miss_all(level, fetch)
    sent(bench, engine)
    assert [save.key for save in level.saves(clock)] == [fetch.key]


def test_two_requests_for_a_clip_wait_for_one_fetch(
    bench: Bench, level: FakeSecondLevel, engine: WireEngine, decoders: FakeClipDecoders
) -> None:
    for number in (1, 2):
        ask(bench, number)
    miss_all(level, level.fetch())
    assert len({sent(bench, engine).request_id for _ in range(2)}) == 2
    assert decoders.planned == [clip("ab")]


def test_who_comes_while_a_clip_is_cut_asks_nobody(
    bench: Bench, level: FakeSecondLevel, engine: WireEngine, decoders: FakeClipDecoders
) -> None:
    decoders.hold()
    ask(bench)
    level.end(level.fetch(), "miss")
    bench.pump(lambda: bool(decoders.planned))
    ask(bench, 2)
    bench.stats()
    assert not bench.frontend.store.second_level.fetches.num_parked
    decoders.release()


def test_a_request_that_is_cancelled_waits_for_nothing(
    bench: Bench, level: FakeSecondLevel, engine: WireEngine, decoders: FakeClipDecoders
) -> None:
    ask(bench)
    fetch = level.fetch()
    bench.client.send(to_frontend.Cancel(bench.client_id, 1))
    assert bench.stats().requests_open == 0
    level.put(fetch, LISTED)
    assert bench.stats().requests_open == 0
    assert decoders.planned == []


def test_without_the_process_nobody_waits(bench: Bench, engine: WireEngine) -> None:
    ask(bench)
    assert len(sent(bench, engine).features) == 2
