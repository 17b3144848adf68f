"""Decoders that are killed or stopped under a real Frontend: what its clients see of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmcached.gateway.requests import item_work
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend as to_frontend
from tests.clock import Clock
from tests.doubles.engine import WireEngine
from tests.frontend.fake_peers import Bench, png
from tests.frontend.integrity import check_frontend
from tests.gateway.decoders import HELD, HELD_PIXELS, HeldRoom, pids

TICK_S = 0.01


@pytest.fixture
def room() -> Iterator[HeldRoom]:
    room = HeldRoom()
    room.hold(HELD_PIXELS)
    yield room
    room.release()


@pytest.fixture
def bench(run_dir: Path, clock: Clock, room: HeldRoom, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(item_work, "PixelBudget", lambda max_pixels: room)
    config: dict[str, Any] = {"mm_processor_cache_gb": 1 / 1024, "mm_shm_cache_max_object_size_mb": 1}
    with Bench(run_dir, ServiceConfig(mm_processor_workers=2, store_gb=0, **config), clock) as bench:
        yield bench


def the_decoder(bench: Bench, room: HeldRoom) -> int:
    """Return the one that has the held picture: no other has begun."""
    bench.pump(room.came[HELD_PIXELS].is_set)
    (pid,) = pids()
    return pid


def added(bench: Bench, engine: WireEngine) -> int:
    return len(bench.from_frontend(engine, to_engine.AddRequest).features)


def test_another_client_s_pictures_go_on_while_a_decoder_is_killed_in_a_batch(
    bench: Bench, engine: WireEngine, room: HeldRoom
) -> None:
    other = bench.connect_client(is_reader=False)
    bench.generate(1, [HELD])
    victim = the_decoder(bench, room)
    bench.generate(2, [HELD, png(2), png(3)])
    bench.pump(lambda: bench.frontend.stats().processor.items_processed == 2)
    os.kill(victim, signal.SIGKILL)
    for number in range(4):
        other.channel.send(to_frontend.Encode(other.client_id, number, 30.0), [png(10 + number)])
        assert added(bench, engine) == 1
    room.release()
    assert {added(bench, engine) for _ in range(2)} == {1, 3}, "the batch is whole: another one has decoded its picture"
    check_frontend(bench.frontend)


def test_a_stopped_decoder_is_killed_at_its_request_s_deadline(
    bench: Bench, engine: WireEngine, room: HeldRoom, clock: Clock
) -> None:
    bench.generate(1, [HELD], timeout_s=30.0)
    stopped = the_decoder(bench, room)
    os.kill(stopped, signal.SIGSTOP)
    room.release()
    clock.now += 31
    assert bench.answer(to_client.Failed).error.code == "deadline_exceeded"
    bench.pump(lambda: stopped not in pids())
    bench.generate(2, [HELD])
    assert added(bench, engine) == 1
