"""Images that their client names, through a Frontend: cached under the name, found without a file, or a typed miss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mmcached.gateway.processing.item_processor import Processing
from mmcached.gateway.requests.item_keys import HASH_HERE_BYTES
from mmcached.gateway.requests.request_verbs import MAX_RESENDS
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CacheMiss, error_from_wire
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages import frontend_from_engines as from_engine
from tests.clock import Clock
from tests.doubles.engine import WireEngine
from tests.frontend.fake_peers import Bench, png
from tests.frontend.integrity import check_frontend
from tests.gateway.held_work import HeldWork
from tests.gateway.pictures import encode, noise
from tests.gateway.requests.test_item_making import MODES

CACHED = [mode for mode in MODES if mode != "off"]
A, B = png(1), png(2)
NO_FILE = b""
BAD = b"broken"


@pytest.fixture
def bench(run_dir: Path, work: HeldWork, mode: str) -> Iterator[Bench]:
    with Bench(run_dir, ServiceConfig(mm_processor_workers=1, store_gb=0, **MODES[mode]), Clock(tick_s=0.01)) as bench:
        yield bench
        work.release()
        bench.pump(lambda: work.is_idle)
        check_frontend(bench.frontend)


def ask(bench: Bench, number: int, images: list[bytes], ids: Sequence[str | None], tenant: str = "") -> None:
    prompt = "look: " + "<image>" * len(images)
    message = to_frontend.Generate(bench.client_id, number, prompt, 4, None, 60.0, tenant, list(ids))
    bench.client.send(message, images)


def hashes(bench: Bench, engine: WireEngine) -> list[str]:
    """Return the keys of the next request that the engine gets."""
    return [feature.mm_hash for feature in bench.from_frontend(engine, to_engine.AddRequest).features]


def failure_of(bench: Bench, number: int) -> to_client.Failed:
    failed = bench.answer(to_client.Failed)
    assert failed.request_id == number
    return failed


def assert_misses(bench: Bench, number: int, *ids: str) -> None:
    error = error_from_wire(failure_of(bench, number).error)
    assert isinstance(error, CacheMiss)
    assert error.mm_hashes == list(ids)


@pytest.mark.parametrize("mode", CACHED, indirect=True)
def test_what_came_with_an_id_is_found_by_the_id_alone(bench: Bench, engine: WireEngine, work: HeldWork) -> None:
    ask(bench, 1, [A, B], ["a", None])
    first = hashes(bench, engine)
    ask(bench, 2, [NO_FILE, NO_FILE], ["a", "a"])
    assert hashes(bench, engine) == [first[0]] * 2
    bench.generate(3, [A, B])
    by_content = hashes(bench, engine)
    assert by_content[1] == first[1]
    assert by_content[0] != first[0], "a name is never what content is called"
    assert work.begun == [A, B, A]
    ask(bench, 4, [NO_FILE], ["a"], tenant="another")
    assert_misses(bench, 4, "a")
    ask(bench, 5, [NO_FILE], [by_content[1]])
    assert_misses(bench, 5, by_content[1])


def test_without_a_cache_an_id_alone_is_always_a_miss(run_dir: Path, work: HeldWork) -> None:
    with Bench(run_dir, ServiceConfig(store_gb=0, **MODES["off"]), Clock(tick_s=0.01)) as bench:
        engine = bench.connect_engine()
        ask(bench, 1, [A], ["a"])
        hashes(bench, engine)
        ask(bench, 2, [NO_FILE], ["a"])
        assert_misses(bench, 2, "a")


@pytest.mark.parametrize("mode", MODES, indirect=True)
def test_a_miss_names_all_that_is_missing_and_begins_nothing(bench: Bench, engine: WireEngine, work: HeldWork) -> None:
    ask(bench, 1, [NO_FILE, A, NO_FILE, NO_FILE], ["y", None, "x", "y"])
    assert_misses(bench, 1, "y", "x")
    assert work.begun == []
    stats = bench.stats()
    assert (stats.requests_open, stats.items.pinned_bytes, stats.processor.queries) == (0, 0, 0)
    ask(bench, 2, [B, A, B, NO_FILE], ["y", None, "x", "y"])
    found = hashes(bench, engine)
    assert (found[0] == found[3], found[0] == found[2]) == (True, False), "one content, two names"


@pytest.mark.parametrize("mode", CACHED, indirect=True)
def test_a_file_whose_id_is_cached_is_not_looked_at_until_a_flush(
    bench: Bench, engine: WireEngine, work: HeldWork
) -> None:
    ask(bench, 1, [A], ["a"])
    first = hashes(bench, engine)
    ask(bench, 2, [BAD], ["a"])
    assert hashes(bench, engine) == first
    bench.client.send(to_frontend.Flush(9))
    token = bench.from_frontend(engine, to_engine.FlushEngine).token
    engine.channel.send(from_engine.EngineFlushed(token))
    bench.answer(to_client.Flushed)
    ask(bench, 3, [NO_FILE], ["a"])
    assert_misses(bench, 3, "a")
    ask(bench, 4, [B], ["a"])
    assert hashes(bench, engine) == first
    assert work.begun == [A, B]


@pytest.mark.parametrize(
    ("images", "ids", "field"),
    [
        ([A], ["a", "b"], "image_ids"),
        ([A, B], ["a"], "image_ids"),
        ([], ["a"], "image_ids"),
        ([A, B], [None, ""], "image_ids[1]"),
        ([A], ["é" * 129], "image_ids[0]"),
        ([A, NO_FILE], ["a", None], "images[1]"),
        ([NO_FILE], [], "images[0]"),
    ],
)
def test_ids_that_cannot_be_are_refused_before_any_work(
    *, bench: Bench, engine: WireEngine, work: HeldWork, images: list[bytes], ids: list[str | None], field: str
) -> None:
    ask(bench, 1, images, ids)
    error = failure_of(bench, 1).error
    assert error.details["field"] == field
    assert not error.retryable
    assert {"value", "limit"} <= error.details.keys()
    ask(bench, 2, [A], ["é" * 128])
    hashes(bench, engine)
    assert work.begun == [A]


def test_what_has_an_id_is_not_hashed(bench: Bench, engine: WireEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Processing, "keys", None)
    large = encode(noise(240, 240))
    assert len(large) > HASH_HERE_BYTES
    ask(bench, 1, [large, A], ["large", "small"])
    assert len(hashes(bench, engine)) == 2


def test_what_is_only_being_processed_is_a_miss_for_an_id_alone(
    bench: Bench, engine: WireEngine, work: HeldWork
) -> None:
    work.hold(A)
    ask(bench, 1, [A], ["a"])
    ask(bench, 2, [NO_FILE], ["a"])
    assert_misses(bench, 2, "a")
    ask(bench, 3, [A], ["a"])
    work.release()
    assert [len(hashes(bench, engine)) for _ in range(2)] == [1, 1]
    assert work.begun == [A]


def test_flush_in_the_middle_begins_again_with_the_file_that_there_is(
    bench: Bench, engine: WireEngine, work: HeldWork
) -> None:
    work.hold(A)
    ask(bench, 1, [NO_FILE, A], ["a", "a"])
    bench.pump(lambda: work.begun == [A])
    bench.client.send(to_frontend.Flush(9))
    bench.from_frontend(engine, to_engine.FlushEngine)
    work.release()
    assert len(hashes(bench, engine)) == 2
    assert work.begun == [A, A]


def test_flush_begins_again_with_the_file_of_who_has_one(run_dir: Path, work: HeldWork) -> None:
    with Bench(run_dir, ServiceConfig(mm_processor_workers=2, store_gb=0, **MODES["shm"]), Clock(tick_s=0.01)) as bench:
        engine = bench.connect_engine()
        ask(bench, 1, [A], ["a"])
        hashes(bench, engine)
        work.hold(A, B)
        ask(bench, 2, [NO_FILE, B], ["a", None])  # waits for B; its other image is a hit at this moment
        bench.pump(lambda: work.begun == [A, B])
        bench.gateway.requests.items.clear()  # as if it had been evicted
        ask(bench, 3, [A], ["a"])
        bench.pump(lambda: work.begun == [A, B, A])
        bench.client.send(to_frontend.Flush(9))
        bench.from_frontend(engine, to_engine.FlushEngine)
        work.release()
        assert len(hashes(bench, engine)) == 1


@pytest.mark.parametrize("mode", CACHED, indirect=True)
def test_an_id_that_is_evicted_while_another_image_is_processed_is_a_miss(
    bench: Bench, engine: WireEngine, work: HeldWork
) -> None:
    ask(bench, 1, [A], ["a"])
    hashes(bench, engine)
    work.hold(B)
    ask(bench, 2, [NO_FILE, B], ["a", None])
    bench.pump(lambda: work.begun == [A, B])
    bench.gateway.requests.items.clear()  # as if it had been evicted
    work.release()
    assert_misses(bench, 2, "a")
    ask(bench, 3, [A, B], ["a", None])
    assert len(hashes(bench, engine)) == 2


def test_ring_items_that_the_engine_missed_are_sent_again_a_bounded_number_of_times(
    bench: Bench, engine: WireEngine
) -> None:
    ask(bench, 1, [A], ["a"])
    hashes(bench, engine)
    ask(bench, 2, [NO_FILE], ["a"])
    for _ in range(MAX_RESENDS + 1):
        add = bench.from_frontend(engine, to_engine.AddRequest)
        engine.channel.send(from_engine.RequestMissed(add.request_id, [add.features[0].mm_hash]))
    error = failure_of(bench, 2).error
    assert (error.code, error.retryable) == ("request_aborted", True)


@pytest.mark.parametrize("mode", ["lru"], indirect=True)
def test_items_that_only_the_engine_had_and_lost_are_a_miss_of_their_ids(bench: Bench, engine: WireEngine) -> None:
    ask(bench, 1, [A, B], ["a", None])
    hashes(bench, engine)
    ask(bench, 2, [NO_FILE, B], ["a", None])
    add = bench.from_frontend(engine, to_engine.AddRequest)
    assert [feature.payload for feature in add.features] == [None, None], "the engine is believed to have both"
    engine.channel.send(from_engine.RequestMissed(add.request_id, [feature.mm_hash for feature in add.features]))
    assert_misses(bench, 2, "a")
    stats = bench.stats()
    assert (stats.desyncs, stats.resends, stats.requests_open) == (2, 1, 1), "open is the one that the engine still has"


def test_one_id_twice_in_one_request_is_its_first_file(bench: Bench, engine: WireEngine, work: HeldWork) -> None:
    ask(bench, 1, [NO_FILE, A, B], ["a", "a", "a"])
    assert len(set(hashes(bench, engine))) == 1
    assert work.begun == [A]


def test_one_id_for_two_files_the_damage_of_one_is_not_told_to_the_other(
    bench: Bench, engine: WireEngine, work: HeldWork
) -> None:
    work.hold(BAD)
    ask(bench, 1, [BAD], ["a"])
    ask(bench, 2, [B, A], [None, "a"])
    bench.pump(lambda: work.begun == [BAD])
    work.release()
    assert failure_of(bench, 1).error.code == "corrupt_image"
    other = failure_of(bench, 2).error
    assert (other.code, other.retryable) == ("request_aborted", True)
    assert "images[1]" in other.message
    ask(bench, 3, [B, A], [None, "a"])
    assert len(hashes(bench, engine)) == 2
