"""Items are made, through a Frontend: hits go past, equal items are processed once, every end leaves nothing behind."""

from __future__ import annotations

import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmcached.gateway.processing import pool
from mmcached.gateway.processing.item_processor import Processing
from mmcached.gateway.requests.item_keys import HASH_HERE_BYTES
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import error_from_wire
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages import frontend_from_engines as from_engine
from mmcached.wire.messages.parts import Inline
from mmcached.wire.stats import ItemsOfModality
from tests.clock import Clock
from tests.doubles.engine import WireEngine
from tests.frontend.fake_peers import DEADLINE_S, Bench, png
from tests.frontend.integrity import check_frontend
from tests.gateway.held_work import HeldWork
from tests.gateway.pictures import encode, noise

SHM: dict[str, Any] = {
    "mm_processor_cache_gb": 1 / 1024,
    "mm_shm_cache_max_object_size_mb": 1,
    "mm_shm_inline_max_kb": 0,
}
MODES: dict[str, dict[str, Any]] = {
    "off": {"mm_processor_cache_gb": 0.0},
    "processor_only": {"mm_processor_cache_type": "processor_only"},
    "lru": {"mm_processor_cache_type": "lru"},
    "shm": SHM,
}
TICK_S = 0.01


def large_png(shade: int) -> bytes:
    """A PNG file of 0.55 MiB."""
    data = png(shade)
    return data + bytes((560 << 10) - len(data))


A, B, C, D = (png(shade) for shade in (1, 2, 3, 4))
BAD = b"broken"


@pytest.fixture
def bench(run_dir: Path, clock: Clock, work: HeldWork, mode: str) -> Iterator[Bench]:
    """One decoder; of one client, two items may wait for it."""
    config = ServiceConfig(mm_processor_workers=1, mm_processor_max_waiting=4, store_gb=0, **MODES[mode])
    with Bench(run_dir, config, clock) as bench:
        yield bench
        work.release()
        bench.pump(lambda: work.is_idle)
        check_frontend(bench.frontend)


def is_begun(bench: Bench, work: HeldWork, *files: bytes) -> None:
    bench.pump(lambda: work.begun == list(files))


def added(bench: Bench, engine: WireEngine) -> to_engine.AddRequest:
    return bench.from_frontend(engine, to_engine.AddRequest)


def failure_of(bench: Bench, number: int) -> tuple[str, object]:
    failed = bench.answer(to_client.Failed)
    assert failed.request_id == number
    return failed.error.code, failed.error.details.get("field")


@pytest.mark.parametrize("size", ["small", "large"])
def test_a_hit_goes_past_all_that_wait(bench: Bench, engine: WireEngine, work: HeldWork, size: str) -> None:
    known = A if size == "small" else encode(noise(240, 240))
    assert (len(known) > HASH_HERE_BYTES) == (size == "large")
    bench.generate(1, [known])
    wanted = added(bench, engine)
    work.hold(B)
    work.begun.clear()
    bench.generate(2, [B])
    bench.generate(3, [C])
    bench.generate(4, [D, known])
    is_begun(bench, work, B)
    bench.pump(lambda: bench.frontend.stats().processor.items_waiting == 2)
    bench.generate(5, [known])
    bench.generate(6, [])
    # A large file is hashed by another thread, meanwhile the next request may go.
    past = sorted((added(bench, engine) for _ in range(2)), key=lambda message: message.request_id)
    assert [[feature.mm_hash for feature in message.features] for message in past] == [
        [wanted.features[0].mm_hash],
        [],
    ]
    assert work.begun == [B]
    work.release()
    assert [len(added(bench, engine).features) for _ in range(3)] == [1, 1, 2]


@pytest.mark.parametrize("mode", MODES, indirect=True)
def test_equal_items_are_processed_once_at_a_time(bench: Bench, engine: WireEngine, work: HeldWork, mode: str) -> None:
    work.hold(A)
    for number, images in enumerate(([A], [A, B, A], [A])):
        bench.generate(number, images)
    is_begun(bench, work, A)
    work.release()
    # One that needs more may be overtaken.
    messages = sorted((added(bench, engine) for _ in range(3)), key=lambda message: message.request_id)
    assert [len(message.features) for message in messages] == [1, 3, 1]
    assert work.begun == [A, B]
    processor = bench.stats().processor
    assert processor.items_processed == 2
    if mode != "off":
        assert (processor.queries, processor.hits) == (4, 2), "what a request names twice counts once"
    by_modality = processor.by_modality
    assert by_modality.image == ItemsOfModality(queries=4, hits=processor.hits, processed=2)
    assert by_modality.video == by_modality.audio == ItemsOfModality()


@pytest.mark.parametrize("mode", MODES, indirect=True)
def test_what_was_processed_for_one_that_waits_on_is_had_at_once(
    bench: Bench, engine: WireEngine, work: HeldWork, mode: str
) -> None:
    work.hold(B)
    bench.generate(1, [A, B])
    is_begun(bench, work, A, B)
    bench.generate(2, [A])
    assert added(bench, engine).request_id == 2
    work.release()
    assert added(bench, engine).request_id == 1
    assert work.begun == [A, B]


@pytest.mark.parametrize("mode", ["off", "processor_only"], indirect=True)
def test_bytes_of_an_item_named_twice_travel_once(bench: Bench, engine: WireEngine) -> None:
    bench.generate(1, [A, B, A])
    payloads = [feature.payload for feature in added(bench, engine).features]
    assert all(isinstance(payload, Inline) for payload in payloads)
    assert payloads[0] == payloads[2] != payloads[1]
    num_frames = {payload: payload.num_frames for payload in payloads if isinstance(payload, Inline)}
    assert len(bench.payload) == sum(num_frames.values())


def test_every_waiter_of_a_bad_image_is_told_its_own_index(bench: Bench, engine: WireEngine, work: HeldWork) -> None:
    work.hold(BAD)
    bench.generate(1, [BAD])
    bench.generate(2, [A, B, BAD])
    is_begun(bench, work, BAD)
    work.release()
    assert failure_of(bench, 1) == ("corrupt_image", "images[0]")
    assert failure_of(bench, 2) == ("corrupt_image", "images[2]")
    bench.generate(3, [B, BAD])
    assert failure_of(bench, 3) == ("corrupt_image", "images[1]")
    assert work.begun == [BAD, A, B, BAD], "a failure is not remembered; what was good is"
    stats = bench.stats()
    assert (stats.requests_open, stats.requests_failed, stats.items.pinned_bytes) == (0, 3, 0)


def test_limits_that_need_no_work_come_before_any(bench: Bench, engine: WireEngine, work: HeldWork) -> None:
    bench.generate(1, [A, b""])
    assert failure_of(bench, 1) == ("empty_image", "images[1]")
    bench.generate(2, [A] * 17)
    assert failure_of(bench, 2) == ("invalid_request", "images")
    assert work.begun == []


def test_an_error_that_is_nobodys_file_is_typed_too(
    bench: Bench, engine: WireEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmcached.gateway.processing.processor.cut_patches", None)
    bench.generate(1, [A])
    failed = bench.answer(to_client.Failed)
    assert failed.error.code == "invariant_error"
    assert "images[0]" in failed.error.message


def test_a_fault_of_the_thread_that_hashes_ends_one_request(
    bench: Bench, engine: WireEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(Processing, "keys", None)
        bench.generate(1, [encode(noise(240, 240))])
        assert failure_of(bench, 1)[0] == "invariant_error"
    bench.generate(2, [encode(noise(240, 240))])
    assert added(bench, engine).request_id == 2


@pytest.mark.parametrize("how", ["cancel", "bye", "death", "deadline"])
def test_request_that_ends_while_it_waits_leaves_nothing(
    bench: Bench, engine: WireEngine, work: HeldWork, clock: Clock, how: str
) -> None:
    work.hold(A)
    bench.generate(1, [A, B], timeout_s=30.0)
    is_begun(bench, work, A)
    match how:
        case "cancel":
            bench.client.send(to_frontend.Cancel(bench.client_id, 1))
        case "bye":
            bench.client.send(to_frontend.ClientBye(bench.client_id))
        case "death":
            bench.client_dies()
        case "deadline":
            clock.now += 31
            assert failure_of(bench, 1)[0] == "deadline_exceeded"
    bench.pump(lambda: not bench.frontend.stats().requests_open)
    assert bench.frontend.stats().processor.items_waiting == 0, "B was not begun, and is not wanted"
    work.release()
    bench.pump(lambda: bench.frontend.stats().processor.items_processed == 1)
    bench.generate(2, [A])
    added(bench, engine)
    stats = bench.stats()
    assert work.begun == [A], "it was finished, and kept for others"
    assert stats.items.entries == 1
    assert stats.items.pinned_bytes > 0


def test_work_that_is_killed_is_begun_again_for_who_has_come_since(
    bench: Bench, engine: WireEngine, work: HeldWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "GRACE_S", 0.0)
    work.hold(A)
    bench.generate(1, [A])
    is_begun(bench, work, A)
    bench.client.send(to_frontend.Cancel(bench.client_id, 1))
    bench.pump(lambda: not bench.frontend.stats().requests_open)
    # The decoder is gone, but nobody has looked into the mailbox.
    assert select.select([bench.gateway.requests], [], [], DEADLINE_S)[0]
    check_frontend(bench.frontend)
    bench.generate(2, [A])
    is_begun(bench, work, A, A)
    work.release()
    added(bench, engine)


def test_work_that_is_killed_and_that_nobody_waits_for_is_forgotten(
    bench: Bench, engine: WireEngine, work: HeldWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "GRACE_S", 0.0)
    work.hold(A)
    bench.generate(1, [A])
    is_begun(bench, work, A)
    bench.client.send(to_frontend.Cancel(bench.client_id, 1))
    bench.pump(lambda: work.ended == [A])
    bench.stats()  # behind what it has left in the mailbox
    check_frontend(bench.frontend)
    work.release()
    bench.generate(2, [A])
    added(bench, engine)


def test_another_waiter_keeps_work_from_being_withdrawn(bench: Bench, engine: WireEngine, work: HeldWork) -> None:
    work.hold(A)
    bench.generate(1, [A])
    bench.generate(2, [B])
    bench.generate(3, [B])
    is_begun(bench, work, A)
    bench.client.send(to_frontend.Cancel(bench.client_id, 2))
    bench.pump(lambda: bench.frontend.stats().requests_open == 2)
    work.release()
    for _ in range(2):
        added(bench, engine)
    assert work.begun == [A, B]


def test_too_much_that_waits_is_refused_at_once_and_hits_are_not(
    bench: Bench, engine: WireEngine, work: HeldWork
) -> None:
    bench.generate(1, [D])
    added(bench, engine)
    work.hold(A)
    bench.generate(2, [A])
    is_begun(bench, work, D, A)
    bench.generate(3, [B])
    bench.generate(4, [C, png(5)])
    failed = bench.answer(to_client.Failed)
    assert failed.request_id == 4
    assert failed.error.code == "service_unavailable"
    assert error_from_wire(failed.error).retryable
    assert "mm_processor_max_waiting" in failed.error.message
    bench.generate(5, [C])  # the refused one has taken no place
    bench.generate(6, [B])  # needs none
    bench.generate(7, [D])
    added(bench, engine)
    assert bench.frontend.stats().processor.busy_refusals == 1
    work.release()
    for _ in range(4):
        added(bench, engine)
    assert sorted(work.begun) == sorted([D, A, B, C])


def test_one_client_s_images_leave_room_for_another_s(bench: Bench, engine: WireEngine, work: HeldWork) -> None:
    work.hold(A)
    bench.generate(1, [A])
    is_begun(bench, work, A)
    bench.generate(2, [B, C])
    bench.generate(3, [D])
    assert failure_of(bench, 3)[0] == "service_unavailable"
    other = bench.connect_client(is_reader=False)
    other.channel.send(to_frontend.Encode(other.client_id, 4, 30.0), [D])
    bench.pump(lambda: bench.frontend.stats().processor.items_waiting == 3)
    work.release()
    for _ in range(3):
        added(bench, engine)


def test_files_that_requests_hold_are_bounded_and_shared(run_dir: Path, clock: Clock, work: HeldWork) -> None:
    """Of two MiB one client may have half, and the next half of what that one has left."""
    files = [large_png(shade) for shade in range(4)]
    config = ServiceConfig(mm_processor_workers=1, store_gb=0, limits=LimitsConfig(max_open_file_mb=2), **SHM)
    with Bench(run_dir, config, clock) as bench:
        engine = bench.connect_engine()
        work.hold(files[0])
        bench.generate(1, [files[0]])
        is_begun(bench, work, files[0])
        bench.generate(2, [files[1]])
        failed = bench.answer(to_client.Failed)
        assert (failed.error.code, failed.error.retryable) == ("service_unavailable", True)
        assert (failed.error.details["field"], failed.error.details["limit"]) == ("limits.max_open_file_mb", 2 << 20)
        other = bench.connect_client(is_reader=False)
        for number in (3, 4):
            other.channel.send(to_frontend.Encode(other.client_id, number, 30.0), [files[number - 1]])
        assert other.answer(to_client.Failed).request_id == 4
        work.release()
        engine.channel.send(from_engine.RequestGenerated(added(bench, engine).request_id, [5], "stop", 0))
        bench.answer(to_client.Generated)
        bench.generate(5, [files[1]])
        assert {added(bench, engine).request_id for _ in range(2)} == {3, 5}


def test_a_request_larger_than_the_queue_is_served_when_nothing_waits(bench: Bench, engine: WireEngine) -> None:
    bench.generate(1, [A, B, C, D])
    assert len(added(bench, engine).features) == 4


@pytest.mark.parametrize("mode", MODES, indirect=True)
def test_flush_while_an_item_is_processed_lets_nothing_of_before_be_cached(
    bench: Bench, engine: WireEngine, work: HeldWork
) -> None:
    work.hold(B)
    bench.generate(1, [A, B])  # A has landed, B is held
    is_begun(bench, work, A, B)
    bench.pump(lambda: bench.frontend.stats().processor.items_processed == 1)
    bench.client.send(to_frontend.Flush(9))
    bench.engines[0].channel.send(from_engine.EngineFlushed(bench.from_frontend(engine, to_engine.FlushEngine).token))
    bench.answer(to_client.Flushed)
    work.release()
    assert len(added(bench, engine).features) == 2
    assert sorted(work.begun) == sorted([A, B, A, B])


def test_flush_while_nobody_waits_any_more_keeps_nothing(bench: Bench, engine: WireEngine, work: HeldWork) -> None:
    work.hold(A)
    bench.generate(1, [A])
    is_begun(bench, work, A)
    bench.client.send(to_frontend.Cancel(bench.client_id, 1))
    bench.client.send(to_frontend.Flush(9))
    bench.from_frontend(engine, to_engine.FlushEngine)
    work.release()
    bench.pump(lambda: bench.frontend.stats().processor.items_processed == 1)
    assert bench.frontend.stats().items.entries == 0


def test_item_that_is_evicted_while_another_is_processed_is_processed_again(
    bench: Bench, engine: WireEngine, work: HeldWork
) -> None:
    bench.generate(1, [A])
    added(bench, engine)
    work.hold(B)
    bench.generate(2, [A, B])
    is_begun(bench, work, A, B)
    bench.gateway.requests.items.clear()  # as if the ring had evicted it
    work.release()
    assert len(added(bench, engine).features) == 2
    assert work.begun == [A, B, A]


def test_engine_that_dies_while_items_are_processed_is_replaced_by_the_next(
    bench: Bench, engine: WireEngine, work: HeldWork
) -> None:
    work.hold(A)
    bench.generate(1, [A])
    is_begun(bench, work, A)
    bench.engine_dies(engine)
    bench.pump(lambda: not bench.stats().engines)
    work.release()
    bench.pump(lambda: bench.frontend.stats().processor.items_processed == 1)
    assert bench.frontend.stats().items.pinned_bytes == 0
    assert len(added(bench, bench.connect_engine()).features) == 1
    assert work.begun == [A], "nothing is done twice"


def test_draining_waits_for_what_is_processed(bench: Bench, engine: WireEngine, work: HeldWork) -> None:
    work.hold(A)
    bench.generate(1, [A])
    is_begun(bench, work, A)
    bench.frontend.drain()
    assert not bench.frontend.is_drained
    work.release()
    add = added(bench, engine)
    engine.channel.send(from_engine.RequestGenerated(add.request_id, [5], "stop", 0))
    bench.answer(to_client.Generated)
    assert bench.frontend.is_drained


def test_closing_ends_what_waits_and_what_runs(run_dir: Path, clock: Clock, work: HeldWork) -> None:
    """The leak gate looks for threads and descriptors."""
    config = ServiceConfig(mm_processor_workers=2, store_gb=0, **SHM)
    with Bench(run_dir, config, clock) as bench:
        bench.connect_engine()
        work.hold(A)
        bench.generate(1, [A, encode(noise(240, 240)), B])
        bench.pump(lambda: A in work.begun)
        work.release()
