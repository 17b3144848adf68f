"""Leases whose descriptors were lost on the way to a living engine come back; those that it has do not."""

from __future__ import annotations

import numpy as np
import pytest

from mmcached.frontend.connections.readers import IDLE_S, MAX_WAIT_S
from mmcached.shm import ObjectStoreReader, RingReader, decode_record_frames
from mmcached.wire.config import ServiceConfig
from mmcached.wire.handle import Handle
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages.parts import Barrier, Inline
from tests.clock import Clock
from tests.doubles.engine import WireEngine, leases_in
from tests.frontend.fake_peers import Bench, png

CONFIG = ServiceConfig(
    mm_processor_cache_gb=1 / 1024, mm_shm_cache_max_object_size_mb=1, mm_shm_inline_max_kb=0, store_gb=0
)


@pytest.fixture
def engine(bench: Bench) -> WireEngine:
    engine = bench.connect_engine()
    engine.answers_barriers = False
    return engine


def request(bench: Bench, engine: WireEngine, number: int, images: list[bytes]) -> to_engine.AddRequest:
    bench.generate(number, images)
    return bench.from_frontend(engine, to_engine.AddRequest)


def test_an_idle_reader_with_leases_out_is_asked_and_what_was_lost_comes_back(
    bench: Bench, engine: WireEngine, clock: Clock
) -> None:
    engine.take_leases(request(bench, engine, 1, [png(1)]))
    request(bench, engine, 2, [png(1), png(2)])  # lost: the engine never heard of it
    assert bench.stats().ring.leases == 3
    clock.now += IDLE_S + 1
    barrier = bench.from_frontend(engine, Barrier)
    assert (barrier.last_seq, len(barrier.slots)) == (3, 2)
    engine.answer(barrier)
    bench.pump(lambda: bench.stats().ring.leases == 1)
    assert bench.stats().ring.lost_leases == 2
    # What it has received stays, and the next descriptor is no gap.
    add = request(bench, engine, 3, [png(2)])
    ((handle, lease),) = leases_in(add)
    assert engine.entry is not None
    assert not engine.entry.has_gap_before(handle, lease)


def test_while_leases_are_sent_nobody_asks(bench: Bench, engine: WireEngine, clock: Clock) -> None:
    for number in range(5):
        clock.now += 0.75 * IDLE_S
        request(bench, engine, number, [png(number)])
    bench.stats()
    assert not engine.backlog


def test_a_reader_without_leases_is_not_asked(bench: Bench, engine: WireEngine, clock: Clock) -> None:
    add = request(bench, engine, 1, [png(1)])
    engine.take_leases(add)
    assert engine.entry is not None
    for handle, _ in leases_in(add):
        engine.entry.give_back(handle)
    clock.now += 10 * IDLE_S
    bench.stats()
    assert not engine.backlog


def test_a_reported_gap_is_asked_about_at_once(bench: Bench, engine: WireEngine) -> None:
    request(bench, engine, 1, [png(1)])
    add = request(bench, engine, 2, [png(2)])
    assert engine.entry is not None
    assert engine.entry.has_gap_before(*leases_in(add)[0])
    engine.take_leases(add)
    engine.channel.send(to_frontend.LeaseGap(engine.entry.incarnation + 1))  # of another incarnation: nobody is asked
    engine.channel.send(to_frontend.LeaseGap(engine.entry.incarnation))
    engine.answer(bench.from_frontend(engine, Barrier))
    bench.pump(lambda: bench.stats().ring.leases == 1)


def test_until_the_answer_comes_items_travel_inline(bench: Bench, engine: WireEngine) -> None:
    first = request(bench, engine, 1, [png(1)])
    engine.take_leases(first)
    assert engine.entry is not None
    engine.channel.send(to_frontend.LeaseGap(engine.entry.incarnation))
    barrier = bench.from_frontend(engine, Barrier)
    add = request(bench, engine, 2, [png(1)])
    assert isinstance(add.features[0].payload, Inline)
    ((handle, _),) = leases_in(first)
    with RingReader.open(engine.entry.announcement) as reader:
        whole = ObjectStoreReader(reader).get(handle, tensors="numpy")
        np.testing.assert_equal(decode_record_frames(bench.payload, tensors="numpy"), whole)
        del whole
    assert add.features[0].nbytes == handle.nbytes
    assert bench.stats().lease_refusals == 1
    engine.answer(barrier)
    bench.stats()
    assert isinstance(request(bench, engine, 3, [png(1)]).features[0].payload, Handle)


def test_an_unanswered_question_is_asked_again_ever_less_often_and_only_the_last_counts(
    bench: Bench, engine: WireEngine, clock: Clock
) -> None:
    request(bench, engine, 1, [png(1)])
    asked = []
    waits = [IDLE_S + 0.01]
    while waits[-1] < MAX_WAIT_S:
        clock.now += waits[-1]
        asked.append(bench.from_frontend(engine, Barrier))
        waits.append(min(2 ** len(waits) * IDLE_S, MAX_WAIT_S))
        clock.now += waits[-1] / 2 - IDLE_S / 2
        bench.stats()
        assert not engine.backlog, "too early"
    assert len({barrier.barrier_id for barrier in asked}) == len(asked)
    engine.answer(asked[0])
    bench.stats()
    assert bench.stats().ring.leases == 1
    engine.answer(asked[-1])
    bench.pump(lambda: bench.stats().ring.leases == 0)


def test_an_engine_that_connects_anew_is_asked(bench: Bench, engine: WireEngine) -> None:
    request(bench, engine, 1, [png(1)])
    engine.connect_anew()
    bench.from_frontend(engine, to_engine.Ring)
    engine.answer(bench.from_frontend(engine, Barrier))
    bench.pump(lambda: bench.stats().ring.leases == 0)


@pytest.mark.parametrize("counts", [{}, {0: 7}, {3000: 0}], ids=str)
def test_an_answer_that_cannot_be_is_an_error_of_the_engine_and_takes_nothing(
    bench: Bench, engine: WireEngine, clock: Clock, counts: dict[int, int]
) -> None:
    engine.take_leases(request(bench, engine, 1, [png(1)]))
    clock.now += IDLE_S + 1
    barrier = bench.from_frontend(engine, Barrier)
    engine.channel.send(to_frontend.Reconcile(barrier.incarnation, barrier.barrier_id, counts))
    engine.channel.send(to_frontend.Reconcile(barrier.incarnation + 1, barrier.barrier_id, {}))
    bench.pump(lambda: bench.stats().protocol_errors == 2)
    assert bench.stats().ring.leases == 1
