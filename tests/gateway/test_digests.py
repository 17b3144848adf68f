"""Files that come as digests only, through a Frontend: found under the keys of their content, or a typed miss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mmcached.cache.hasher import MultiModalHasher
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages import frontend_from_engines as from_engine
from mmcached.wire.messages.parts import ClipOptions
from tests.clock import Clock
from tests.doubles.engine import WireEngine
from tests.frontend.fake_peers import Bench
from tests.frontend.integrity import check_frontend
from tests.gateway.held_work import HeldWork
from tests.gateway.requests.test_item_making import MODES
from tests.gateway.test_image_ids import CACHED, NO_FILE, A, B, assert_misses, failure_of, hashes

DIGEST_A, DIGEST_B = map(MultiModalHasher().content_digest, (A, B))
FILM = ClipOptions("video", fps=2.0)


@pytest.fixture
def bench(run_dir: Path, work: HeldWork, mode: str) -> Iterator[Bench]:
    with Bench(run_dir, ServiceConfig(mm_processor_workers=1, store_gb=0, **MODES[mode]), Clock(tick_s=0.01)) as bench:
        yield bench
        work.release()
        bench.pump(lambda: work.is_idle)
        check_frontend(bench.frontend)


def ask(
    bench: Bench, number: int, files: list[bytes], contents: Sequence[str | None], clips: Sequence[ClipOptions] = ()
) -> None:
    prompt = "look: " + "<image>" * (len(files) - len(clips)) + "<video>" * len(clips)
    message = to_frontend.Generate(
        bench.client_id, number, prompt, 4, None, 60.0, contents=list(contents), clips=list(clips)
    )
    bench.client.send(message, files)


@pytest.mark.parametrize("mode", CACHED, indirect=True)
def test_a_digest_finds_what_came_as_a_file(bench: Bench, engine: WireEngine, work: HeldWork) -> None:
    ask(bench, 1, [A, B], [])
    first = hashes(bench, engine)
    ask(bench, 2, [NO_FILE, A, NO_FILE], [DIGEST_A, None, DIGEST_B])
    assert hashes(bench, engine) == [first[0], first[0], first[1]]
    assert work.begun == [A, B]


@pytest.mark.parametrize("mode", MODES, indirect=True)
def test_a_miss_names_the_digests_and_begins_nothing(bench: Bench, engine: WireEngine, work: HeldWork) -> None:
    ask(bench, 1, [NO_FILE, A, NO_FILE, NO_FILE], [DIGEST_B, None, "ab" * 32, DIGEST_B])
    assert_misses(bench, 1, DIGEST_B, "ab" * 32)
    assert work.begun == []
    ask(bench, 2, [B, NO_FILE], [None, DIGEST_B])
    found = hashes(bench, engine)
    assert found[0] == found[1], "the file came with the same request"
    ask(bench, 3, [NO_FILE], [DIGEST_A], [FILM])
    assert_misses(bench, 3, DIGEST_A)


@pytest.mark.parametrize("mode", CACHED, indirect=True)
def test_after_a_flush_a_digest_is_a_miss(bench: Bench, engine: WireEngine) -> None:
    ask(bench, 1, [A], [])
    hashes(bench, engine)
    bench.client.send(to_frontend.Flush(9))
    token = bench.from_frontend(engine, to_engine.FlushEngine).token
    engine.channel.send(from_engine.EngineFlushed(token))
    bench.answer(to_client.Flushed)
    ask(bench, 3, [NO_FILE], [DIGEST_A])
    assert_misses(bench, 3, DIGEST_A)


@pytest.mark.parametrize(
    ("files", "contents", "field"),
    [
        ([A], [DIGEST_A], "contents"),
        ([NO_FILE], [DIGEST_A, DIGEST_B], "contents"),
        ([NO_FILE, NO_FILE], [DIGEST_A, None], "images[1]"),
        ([NO_FILE], [None], "images[0]"),
    ],
)
def test_digests_that_cannot_be_are_refused_before_any_work(
    *, bench: Bench, engine: WireEngine, work: HeldWork, files: list[bytes], contents: list[str | None], field: str
) -> None:
    ask(bench, 1, files, contents)
    error = failure_of(bench, 1).error
    assert error.details["field"] == field
    assert not error.retryable
    ask(bench, 2, [A], [])
    hashes(bench, engine)
    assert work.begun == [A]


def test_what_is_only_being_processed_is_a_miss_for_a_digest(bench: Bench, engine: WireEngine, work: HeldWork) -> None:
    work.hold(A)
    ask(bench, 1, [A], [])
    ask(bench, 2, [NO_FILE], [DIGEST_A])
    assert_misses(bench, 2, DIGEST_A)
    work.release()
    hashes(bench, engine)
