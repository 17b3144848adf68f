"""Encoder outputs that another host has, or is computing: a request waits for them before it is processed, once."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from mmcached.cache.store_keys import output_key
from mmcached.shm.store.codec import Record
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import frontend as to_frontend
from tests.clock import Clock
from tests.frontend.fake_peers import Bench, png
from tests.frontend.integrity import check_frontend
from tests.frontend.second_levels import FakeSecondLevel
from tests.gateway.requests.test_encoder_outputs import CONFIG as WITHOUT
from tests.gateway.requests.test_encoder_outputs import FINGERPRINT, NUM_EMBEDS, Host

CONFIG = msgspec.structs.replace(
    WITHOUT, store_l2="redis://nowhere", limits=LimitsConfig(l2_timeout_ms=50, l2_claim_wait_ms=2000)
)
TICK_S = 1e-6


@pytest.fixture
def host(bench: Bench) -> Host:
    return Host(bench)


@pytest.fixture
def level(host: Host) -> FakeSecondLevel:
    return FakeSecondLevel(host.bench)


def output() -> Record:
    return {"embeddings": np.zeros((NUM_EMBEDS, 64), np.int32)}


def parked(host: Host) -> int:
    return host.bench.frontend.stats().store.fetches.parked


def test_an_image_that_another_host_has_encoded_is_not_processed_here(host: Host, level: FakeSecondLevel) -> None:
    host.ask(png(1))
    fetch = level.fetch()
    assert fetch.claims
    assert fetch.key.startswith(f"encoder/{FINGERPRINT}/")
    assert host.waits()
    level.put(fetch, output())
    _, _, loaded = host.sent()
    assert (loaded.has_output, loaded.num_embeds) == (True, NUM_EMBEDS)
    assert output_key(FINGERPRINT, loaded.mm_hash) == fetch.key
    assert host.bench.stats().processor.items_processed == 0


@pytest.mark.parametrize("outcome", ["miss", "failed", "nothing is heard"])
def test_an_image_that_no_host_has_is_encoded_here_and_asked_for_once(
    host: Host, level: FakeSecondLevel, clock: Clock, outcome: str
) -> None:
    host.ask(png(1))
    fetch = level.fetch()
    if outcome == "nothing is heard":
        clock.now += 0.05
    else:
        level.end(fetch, outcome)  # type: ignore[arg-type]
    _, add, feature = host.sent()
    assert not feature.has_output
    assert add.store_epoch
    host.ask(png(1))
    assert host.waits(), "for the other engine of this host"
    assert not parked(host)


def test_an_image_that_another_host_encodes_is_waited_for(host: Host, level: FakeSecondLevel, clock: Clock) -> None:
    host.ask(png(1))
    first = level.fetch()
    level.end(first, "elsewhere")
    assert host.waits()
    level.put(first, output())
    assert host.sent()[2].has_output
    host.ask(png(2))
    level.end(level.fetch(), "elsewhere")
    assert host.waits()
    clock.now += 2.0
    assert not host.sent()[2].has_output, "for too long"


def test_the_death_of_the_process_lets_requests_go_on(host: Host, level: FakeSecondLevel) -> None:
    host.ask(png(1))
    level.fetch()
    level.die()
    assert not host.sent()[2].has_output


def test_a_flush_lets_requests_go_on(host: Host, level: FakeSecondLevel) -> None:
    host.ask(png(1))
    level.fetch()
    host.bench.frontend.store.flush(is_new_epoch=False)
    assert not host.sent()[2].has_output


def test_a_request_that_is_cancelled_waits_for_nothing(host: Host, level: FakeSecondLevel) -> None:
    host.ask(png(1))
    fetch = level.fetch()
    host.bench.client.send(to_frontend.Cancel(host.bench.client_id, 1))
    assert host.bench.stats().requests_open == 0
    level.put(fetch, output())
    assert not host.waits()
    assert not any(engine.backlog for engine in host.engines)


def test_an_embedding_that_another_host_has_needs_no_engine(host: Host, level: FakeSecondLevel) -> None:
    bench = host.bench
    bench.client.send(to_frontend.Encode(bench.client_id, 1, 60.0, "", [], takes_keys=True), [png(1)])
    fetch = level.fetch()
    level.put(fetch, output())
    assert bench.answer(to_client.Encoded).outputs == [fetch.key]


def test_what_is_encoded_here_is_saved_for_other_hosts(host: Host, level: FakeSecondLevel, clock: Clock) -> None:
    host.ask(png(1))
    level.end(level.fetch(), "miss")
    _, _, feature = host.sent()
    host.save(feature)
    assert [save.key for save in level.saves(clock)] == [output_key(FINGERPRINT, feature.mm_hash)]


def test_a_named_image_is_not_asked_for(host: Host, level: FakeSecondLevel) -> None:
    host.ask(png(1), image_id="a cat")
    assert not host.sent()[2].has_output


def test_without_a_second_level_nobody_waits(run_dir: Path, clock: Clock) -> None:
    with Bench(run_dir, WITHOUT, clock) as bench:
        host = Host(bench)
        assert not host.asked(png(1))[2].has_output
        assert not parked(host)


def test_where_other_hosts_are_not_waited_for_it_is_asked_for_once(run_dir: Path, clock: Clock) -> None:
    config = msgspec.structs.replace(CONFIG, limits=LimitsConfig(l2_claim_wait_ms=0))
    with Bench(run_dir, config, clock) as bench:
        host = Host(bench)
        level = FakeSecondLevel(bench)
        host.ask(png(1))
        level.end(level.fetch(), "elsewhere")
        assert not host.sent()[2].has_output
        assert bench.frontend.stats().store.fetches.late == 1
        check_frontend(bench.frontend)
