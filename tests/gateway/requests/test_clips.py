"""Clips through a Frontend: cut once, decoded as far as they are new, known again after all caches are empty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmcached.cache.store_keys import output_key
from mmcached.gateway.requests.clip_records import ClipRecords
from mmcached.gateway.requests.submission import Submission
from mmcached.shm import encode as encode_record
from mmcached.wire.config import ServiceConfig
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages import frontend_from_engines as from_engine
from mmcached.wire.messages.parts import ClipOptions
from mmcached.wire.stats import ItemsOfModality
from mmcached.wire.vocabulary import BEGIN_TOKEN_ID, IMAGE_TOKEN_ID, MODALITIES, VIDEO_TOKEN_ID
from tests.clips.fake_decoders import FakeClipDecoders, clip, video
from tests.clock import Clock
from tests.doubles.engine import WireEngine
from tests.frontend.fake_peers import Bench, png
from tests.frontend.integrity import check_frontend
from tests.gateway.held_work import HeldWork
from tests.gateway.requests.test_item_making import MODES

A = png(1)
MIB = 1 / 1024
ROWS = np.zeros((1, 4), np.int32)
TICK_S = 0.01


@pytest.fixture
def decoders(monkeypatch: pytest.MonkeyPatch, work: HeldWork) -> Iterator[FakeClipDecoders]:
    decoders = FakeClipDecoders(monkeypatch)
    yield decoders
    decoders.release()


@pytest.fixture
def bench(run_dir: Path, clock: Clock, decoders: FakeClipDecoders, mode: str) -> Iterator[Bench]:
    limits = LimitsConfig(max_clips_per_request=2, output_wait_s=0.0)
    settings: dict[str, Any] = {"mm_processor_workers": 1, "store_gb": 4 * MIB, "limits": limits, **MODES[mode]}
    with Bench(run_dir, ServiceConfig(**settings), clock) as bench:
        yield bench
        decoders.release()
        check_frontend(bench.frontend)


@pytest.fixture
def engine(bench: Bench) -> WireEngine:
    return bench.connect_engine(encoder_fingerprint="f" * 32)


class Asking:
    """A client that has clips encoded, and the engine that is told so."""

    def __init__(self, bench: Bench, engine: WireEngine) -> None:
        self._bench = bench
        self._engine = engine
        self.number = 0

    def send(self, *clips: tuple[bytes, ClipOptions], images: tuple[bytes, ...] = (), tenant: str = "") -> None:
        self.number += 1
        files, options = [*images, *(data for data, _ in clips)], [each for _, each in clips]
        message = to_frontend.Encode(self._bench.client_id, self.number, 60.0, tenant, clips=options)
        self._bench.client.send(message, files)

    def added(self) -> to_engine.AddRequest:
        return self._bench.from_frontend(self._engine, to_engine.AddRequest)

    def encode(self, *clips: tuple[bytes, ClipOptions], images: tuple[bytes, ...] = (), tenant: str = "") -> list[str]:
        """Return the hashes of the items that an engine gets; it answers."""
        self.send(*clips, images=images, tenant=tenant)
        add = self.added()
        self._engine.channel.send(from_engine.RequestEncoded(add.request_id, [{} for _ in add.features]))
        self.answer = self._bench.answer(to_client.Encoded)
        return [feature.mm_hash for feature in add.features]

    def failure(self) -> tuple[str, object]:
        failed = self._bench.answer(to_client.Failed)
        assert failed.request_id == self.number
        return failed.error.code, failed.error.details.get("field")


@pytest.fixture
def asking(bench: Bench, engine: WireEngine) -> Asking:
    return Asking(bench, engine)


@pytest.mark.parametrize("mode", ["shm"], indirect=True)
def test_a_large_file_is_decoded_from_where_it_was_received(asking: Asking, decoders: FakeClipDecoders) -> None:
    """A copy would stop the loop for milliseconds, and take the memory once more."""
    large = clip("ab").ljust(1 << 20, b".")
    assert len(asking.encode((large, video(0, 2)))) == 2
    (received,) = decoders.planned
    assert received == large
    assert isinstance(received, bytearray)


@pytest.mark.parametrize("mode", MODES, indirect=True)
def test_a_known_clip_is_not_opened(asking: Asking, decoders: FakeClipDecoders, mode: str) -> None:
    hashes = asking.encode((clip("abc"), video()))
    assert len(set(hashes)) == 3
    assert asking.answer.clips == [[(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]]
    assert (decoders.planned, decoders.decoded) == ([clip("abc")], ["a", "b", "c"])
    assert asking.encode((clip("abc"), video())) == hashes
    assert decoders.planned == [clip("abc")]
    # Without a cache of items, what the engine has to encode again is decoded again.
    assert decoders.decoded == ["a", "b", "c"] * (2 if mode == "off" else 1)


def test_a_clip_that_was_cut_for_one_that_waits_on_is_had_at_once(
    run_dir: Path, clock: Clock, decoders: FakeClipDecoders, work: HeldWork
) -> None:
    """There is no store that would know its slices."""
    config = ServiceConfig(mm_processor_workers=1, mm_processor_cache_gb=0, store_gb=0)
    with Bench(run_dir, config, clock) as bench:
        asking = Asking(bench, bench.connect_engine(encoder_fingerprint="f" * 32))
        work.hold(A)
        asking.send((clip("ab"), video()), images=(A,))
        bench.pump(lambda: work.begun == [A])
        asking.send((clip("ab"), video()))
        assert len(asking.added().features) == 2
        work.release()
        assert len(asking.added().features) == 3
        assert decoders.planned == [clip("ab")]


@pytest.mark.parametrize("mode", MODES, indirect=True)
def test_items_are_counted_by_modality(bench: Bench, asking: Asking, mode: str) -> None:
    asking.encode((clip("abc"), video()), images=(A,))
    hashes = asking.encode((clip("abc"), video(0, 2)), images=(A, png(2)))
    worker = bench.connect_client(is_reader=False)
    assert worker.put(output_key("f" * 32, hashes[-1]), {"embeddings": ROWS}).is_stored
    asking.encode((clip("abc"), video(1, 3)))
    processor = bench.stats().processor
    image, video_, audio = (getattr(processor.by_modality, modality) for modality in MODALITIES)
    if mode == "off":
        assert (image.queries, image.hits, image.processed) == (3, 0, 3)
        assert (video_.queries, video_.hits, video_.processed) == (6, 0, 6), "what is loaded counts with a cache only"
    else:
        assert (image.queries, image.hits, image.processed) == (3, 1, 2)
        assert (video_.queries, video_.hits, video_.processed) == (7, 4, 3)
        assert processor.queries == image.queries + video_.queries
        assert processor.hits == image.hits + video_.hits
    assert processor.items_processed == image.processed + video_.processed
    assert audio == ItemsOfModality()


def test_what_is_known_of_clips_counts_in_no_figure_of_the_store(bench: Bench, asking: Asking) -> None:
    asking.encode((clip("abc"), video()))
    asking.encode((clip("abc"), video()))
    store = bench.frontend.stats().store
    assert (store.queries, store.hits) == (0, 0), "no client has asked for a record"


def test_another_window_decodes_what_is_new(asking: Asking, decoders: FakeClipDecoders) -> None:
    first = asking.encode((clip("abcdef"), video(0, 4)))
    decoders.decoded.clear()
    second = asking.encode((clip("abcdef"), video(2, 6)))
    assert decoders.decoded == ["e", "f"]
    assert first[2:] == second[:2]
    assert asking.answer.clips == [[(2.0, 3.0), (3.0, 4.0), (4.0, 5.0), (5.0, 6.0)]]
    decoders.decoded.clear()
    assert asking.encode((clip("abcdef"), video(1, 5))) == [*first[1:], second[2]]
    assert decoders.decoded == [], "it is opened, and nothing is decoded"


def test_equal_seconds_of_another_file_are_one_item(asking: Asking, decoders: FakeClipDecoders) -> None:
    short, longer = asking.encode((clip("aab"), video())), asking.encode((clip("aabc"), video()))
    assert (short[0], short) == (short[1], longer[:3])
    assert decoders.decoded == list("aabaabc"), "another file has to be decoded to see that"


def test_options_are_in_the_key(asking: Asking, decoders: FakeClipDecoders) -> None:
    for options in (video(), video(0, 3), ClipOptions("video", fps=4.0), ClipOptions("video", num_frames=6)):
        asking.encode((clip("abc"), options))
    assert decoders.planned == [clip("abc")] * 4
    assert decoders.decoded == ["a", "b", "c"], "all of them have the same slices here"


def test_tenants_share_nothing(asking: Asking, decoders: FakeClipDecoders) -> None:
    first, second = (asking.encode((clip("ab"), video()), tenant=tenant) for tenant in ("", "other"))
    assert not {*first} & {*second}
    assert decoders.decoded == ["a", "b"] * 2


def test_slices_whose_output_is_stored_are_loaded(bench: Bench, asking: Asking, decoders: FakeClipDecoders) -> None:
    hashes = asking.encode((clip("abc"), video()))
    worker = bench.connect_client(is_reader=False)
    for key in hashes[:2]:
        assert worker.put(output_key("f" * 32, key), {"embeddings": ROWS}).is_stored
    asking.send((clip("abc"), video()))
    assert [feature.has_output for feature in asking.added().features] == [True, True, False]
    assert decoders.planned == [clip("abc")]


@pytest.mark.parametrize("mode", ["off"], indirect=True)
def test_only_slices_that_are_nowhere_are_decoded_again(
    bench: Bench, asking: Asking, decoders: FakeClipDecoders
) -> None:
    hashes = asking.encode((clip("abcd"), video()))
    worker = bench.connect_client(is_reader=False)
    for key in (hashes[0], hashes[2]):
        assert worker.put(output_key("f" * 32, key), {"embeddings": ROWS}).is_stored
    decoders.planned.clear()
    decoders.decoded.clear()
    assert asking.encode((clip("abcd"), video())) == hashes
    assert (decoders.planned, decoders.decoded) == ([], ["b", "d"])


@pytest.mark.parametrize("mode", ["off"], indirect=True)
def test_a_second_that_comes_twice_is_decoded_again_once(asking: Asking, decoders: FakeClipDecoders) -> None:
    asking.encode((clip("aab"), video()))
    decoders.decoded.clear()
    assert len(asking.encode((clip("aab"), video()))) == 3
    assert decoders.decoded == ["a", "b"]


def test_markers_say_which_file_comes_where(bench: Bench, engine: WireEngine, asking: Asking) -> None:
    prompt = "<video>x<image><video>"
    files, options = [A, clip("a"), clip("bc")], [video(), video()]
    bench.client.send(to_frontend.Generate(bench.client_id, 1, prompt, 4, None, 60.0, clips=options), files)
    add = asking.added()
    assert [feature.modality for feature in add.features] == ["video", "image", "video", "video"]
    lengths = [feature.length for feature in add.features]
    places, expected = [], [BEGIN_TOKEN_ID]
    for text, token_id, many in (("", VIDEO_TOKEN_ID, [0]), ("x", IMAGE_TOKEN_ID, [1]), ("", VIDEO_TOKEN_ID, [2, 3])):
        expected += text.encode()
        for index in many:
            places.append(len(expected))
            expected += [token_id] * lengths[index]
    assert add.prompt_token_ids == expected
    assert [feature.offset for feature in add.features] == places


def test_what_cannot_be_is_refused_by_name(bench: Bench, asking: Asking, decoders: FakeClipDecoders) -> None:
    for clips, expected in (
        ([(b"", video())], ("empty_clip", "videos[0]")),
        ([(clip("a"), video()), (b"no clip", video())], ("corrupt_clip", "videos[1]")),
        ([(clip("a!"), video())], ("corrupt_clip", "videos[0]")),
        ([(clip("a"), video(1))], ("clip_too_large", "videos[0]")),
        ([(clip("a" * 4097), video())], ("clip_too_large", "videos[0]")),
        ([(clip("a"), ClipOptions("video", 2.0, 1.0, 2.0))], ("invalid_request", "videos[0].end_s")),
        ([(clip("a"), ClipOptions("video", fps=2.0, num_frames=2))], ("invalid_request", "videos[0].fps")),
        ([(clip("a"), video())] * 3, ("invalid_request", "clips")),
    ):
        asking.send(*clips)
        assert asking.failure() == expected
    assert len(asking.encode((clip("ab"), video()))) == 2, "and the service goes on"


def test_more_clips_than_files(bench: Bench, asking: Asking) -> None:
    asking.number += 1
    bench.client.send(to_frontend.Encode(bench.client_id, asking.number, 60.0, clips=[video()]), [])
    assert asking.failure() == ("invalid_request", "clips")


@pytest.mark.parametrize("is_damaged", [False, True])
def test_equal_clips_at_a_time_are_cut_once(
    bench: Bench, asking: Asking, decoders: FakeClipDecoders, is_damaged: bool
) -> None:
    data = clip("ab!" if is_damaged else "abc")
    decoders.hold()
    for _ in range(3):
        asking.send((data, video()))
    bench.pump(lambda: decoders.planned == [data] and len(bench.gateway.requests) == 3)
    decoders.release()
    if is_damaged:
        assert [bench.answer(to_client.Failed).error.code for _ in range(3)] == ["corrupt_clip"] * 3
    else:
        assert len({tuple(each.mm_hash for each in asking.added().features) for _ in range(3)}) == 1
    assert (decoders.planned, decoders.decoded) == ([data], ["a", "b", "c"][: 2 if is_damaged else 3])


def test_who_comes_when_a_clip_is_made_for_another_that_waits_has_it_at_once(
    bench: Bench, asking: Asking, decoders: FakeClipDecoders
) -> None:
    asking.send((clip("ab"), video()), (clip("cd"), video()))
    decoders.hold_at("c")
    bench.pump(lambda: decoders.is_held)
    asking.send((clip("ab"), video()))
    assert len(asking.added().features) == 2
    assert decoders.decoded == ["a", "b"], "and it is not decoded again"
    decoders.release()
    assert len(asking.added().features) == 4


@pytest.mark.parametrize("mode", MODES)
def test_slices_that_were_made_for_another_that_waits_are_not_made_again(
    mode: str, run_dir: Path, clock: Clock, decoders: FakeClipDecoders, work: HeldWork
) -> None:
    settings: dict[str, Any] = {"mm_processor_workers": 2, "store_gb": 4 * MIB, **MODES[mode]}
    with Bench(run_dir, ServiceConfig(**settings), clock) as bench:
        asking = Asking(bench, bench.connect_engine(encoder_fingerprint="f" * 32))
        work.hold(A)
        asking.send((clip("abcd"), video(0, 3)), images=(A,))
        bench.pump(lambda: work.begun == [A])
        bench.pump(lambda: decoders.decoded == ["a", "b", "c"])
        asking.send((clip("abcd"), video(1, 4)))
        assert len(asking.added().features) == 3
        assert decoders.decoded == ["a", "b", "c", "d"]
        work.release()
        assert len(asking.added().features) == 4


@pytest.mark.parametrize("mode", ["off"], indirect=True)
@pytest.mark.parametrize("has_store", [False, True])
def test_who_joins_a_clip_that_has_landed_is_sent_whether_the_store_knows_it_or_not(
    bench: Bench, asking: Asking, decoders: FakeClipDecoders, has_store: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_store:
        monkeypatch.setattr(ClipRecords, "slices", lambda *_: [])
    asking.send((clip("a!"), video()), (clip("cd"), video()))
    assert asking.failure() == ("corrupt_clip", "videos[0]")
    asking.send((clip("ab"), video()), (clip("cd"), video()))
    decoders.hold_at("d")
    bench.pump(lambda: decoders.is_held)
    asking.send((clip("ab"), video()))
    assert len(asking.added().features) == 2
    decoders.release()
    assert len(asking.added().features) == 4


@pytest.mark.parametrize("is_damaged", [False, True])
def test_parts_of_a_file_that_are_wanted_at_a_time_are_decoded_one_after_the_other(
    bench: Bench, asking: Asking, decoders: FakeClipDecoders, is_damaged: bool
) -> None:
    data = clip("a!cdef" if is_damaged else "abcdef")
    decoders.hold()
    for window in (video(0, 4), video(2, 6), video(2, 5)):
        asking.send((data, window))
    bench.pump(lambda: decoders.is_held)
    decoders.release()
    if is_damaged:
        assert bench.answer(to_client.Failed).error.code == "corrupt_clip"
    hashes = [[each.mm_hash for each in asking.added().features] for _ in range(2 if is_damaged else 3)]
    assert len({key for keys in hashes for key in keys}) == (4 if is_damaged else 6)
    assert decoders.decoded == list("acdef" if is_damaged else "abcdef")


def test_a_clip_behind_another_one_of_its_file_may_be_given_up(
    bench: Bench, asking: Asking, decoders: FakeClipDecoders
) -> None:
    decoders.hold_at("b")
    asking.send((clip("abc"), video(0, 2)))
    bench.pump(lambda: decoders.is_held)
    asking.send((clip("abc"), video(1, 3)))
    bench.pump(lambda: len(bench.gateway.requests) == 2)
    bench.client.send(to_frontend.Cancel(bench.client_id, asking.number))
    bench.pump(lambda: len(bench.gateway.requests) == 1)
    asking.send((clip("abc"), video(0, 3)))
    bench.pump(lambda: len(bench.gateway.requests) == 2)
    decoders.release()
    assert [len(asking.added().features) for _ in range(2)] == [2, 3]
    assert decoders.decoded == ["a", "b", "c"]


def test_a_clip_that_nobody_wants_any_more_is_given_up(
    bench: Bench, asking: Asking, decoders: FakeClipDecoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmcached.gateway.processing.pool.GRACE_S", 0.0)
    decoders.hold()
    asking.send((clip("abc"), video()))
    bench.pump(lambda: bool(decoders.planned))
    bench.client.send(to_frontend.Cancel(bench.client_id, asking.number))
    bench.pump(lambda: not bench.gateway.requests.processor_stats().items_waiting and not len(bench.gateway.requests))
    decoders.release()
    assert len(asking.encode((clip("abc"), video()))) == 3


@pytest.mark.parametrize("is_new_epoch", [False, True])
def test_a_flush_in_the_middle_lets_nothing_out_that_was_begun_before(
    bench: Bench, asking: Asking, engine: WireEngine, decoders: FakeClipDecoders, is_new_epoch: bool
) -> None:
    decoders.hold()
    asking.send((clip("ab"), video()))
    bench.pump(lambda: decoders.is_held)
    bench.client.send(to_frontend.Flush(99, is_new_epoch))
    flush = bench.from_frontend(engine, to_engine.FlushEngine)
    engine.channel.send(from_engine.EngineFlushed(flush.token))
    bench.answer(to_client.Flushed)
    decoders.release()
    assert len(asking.added().features) == 2
    assert decoders.planned == [clip("ab")] * 2, "it was begun again"
    assert "".join(decoders.decoded) in ("ab", "abab"), "once if no second was being decoded yet"


@pytest.mark.parametrize(
    "record",
    [
        {"slices": "none"},
        {"slices": []},
        {"slices": [["x", 4, 0.0, 1.0]]},
        {"slices": [["0" * 64, 10**6, 0.0, 1.0]]},
        {"slices": [["0" * 64, 0, 0.0, 1.0]]},
        {"slices": [["0" * 64, 4, 0.0]]},
        {"else": [["0" * 64, 4, 0.0, 1.0]]},
        {"slices": ROWS},
    ],
    ids=range(8),
)
def test_what_somebody_else_puts_in_place_of_a_clips_record_counts_as_missing(
    bench: Bench, asking: Asking, decoders: FakeClipDecoders, record: dict[str, Any]
) -> None:
    liar = bench.connect_client(is_reader=False)
    bench.frontend.store.records.put = lying(bench, record)  # type: ignore[method-assign]
    hashes = asking.encode((clip("abc"), video()))
    del bench.frontend.store.records.put
    assert len(hashes) == 3
    assert asking.encode((clip("abc"), video())) == hashes
    assert decoders.planned == [clip("abc")] * 2
    del liar


@pytest.mark.parametrize("mode", MODES, indirect=True)
@pytest.mark.parametrize("num_listed", [1, 3, 5])
def test_a_list_of_what_no_slice_is_called_ends_one_request_and_is_forgotten(
    bench: Bench, asking: Asking, decoders: FakeClipDecoders, num_listed: int
) -> None:
    lie = [[f"{number:064x}", 4, 0.0, 1.0] for number in range(num_listed)]
    bench.frontend.store.records.put = lying(bench, {"slices": lie})  # type: ignore[method-assign]
    assert len(asking.encode((clip("abc"), video()))) == 3, "it is cut for this one"
    asking.send((clip("abc"), video()))
    assert asking.failure()[0] == ("request_aborted" if num_listed <= 3 else "invariant_error")
    del bench.frontend.store.records.put
    assert len(asking.encode((clip("abc"), video()))) == 3


@pytest.mark.parametrize("mode", ["shm"], indirect=True)
def test_a_fault_while_a_request_is_taken_leaves_nothing_of_it(
    bench: Bench, asking: Asking, decoders: FakeClipDecoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what it has joined would take room for ever, and all other clips would wait for that."""
    asking.encode(images=(A,))

    def submit(*_: Any) -> bool:
        raise KeyError

    with monkeypatch.context() as faulty:
        faulty.setattr(Submission, "submit", submit)
        asking.send(images=(A,))
        assert asking.failure()[0] == "invariant_error"
    check_frontend(bench.frontend)


def lying(bench: Bench, record: dict[str, Any]) -> Any:
    """Return a `put` that keeps another record under each key of a clip."""
    put = type(bench.frontend.store.records).put
    lie = encode_record(record)

    def instead(tenant: str, key: str, encoded: Any, *, epoch: int) -> Any:
        return put(bench.frontend.store.records, tenant, key, lie if key.startswith("clip/") else encoded, epoch=epoch)

    return instead
