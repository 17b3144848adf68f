"""Decoders of clips in processes: slices come one at a time, and what kills one costs its clip a slice."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mmcached.clips.frame_sizes import FrameSizes
from mmcached.clips.messages import MAX_LIST_BYTES, MAX_SLICES, PIECES, ClipOpened, ClipPlanned, SliceMade
from mmcached.clips.sampling import Piece
from mmcached.clips.settings import ClipSettings
from mmcached.clips.video import OpenVideo
from mmcached.gateway.processing import clip_decoder_process
from mmcached.gateway.processing.clip_decoder_process import ClipDecoder
from mmcached.gateway.processing.clip_decoders import ClipDecoderPool
from mmcached.gateway.processing.confined_decoder import DecoderDiedError
from mmcached.gateway.processing.pixel_budget import PixelBudget
from mmcached.gateway.processing.pool import NotWantedError
from mmcached.pictures.messages import OutOfMemory, Ready
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ClipTooLarge, CorruptClip, MmcachedError, ServiceUnavailable
from mmcached.wire.messages.parts import ClipOptions
from tests.clips.boxes import avi, jpeg
from tests.clips.files import sound, video
from tests.clips.pools import decoded, outcome, pids, pool_of, wanted_until_deadline
from tests.gateway.decoders import write_liar

SETTINGS = {modality: ClipSettings.from_config(ServiceConfig(), modality) for modality in ("video", "audio")}
TEN_FPS = ClipOptions("video", fps=10.0)


def test_slices_are_those_that_the_same_code_makes_here(living: ClipDecoderPool) -> None:
    data = video(10)
    clip = OpenVideo(data, TEN_FPS, SETTINGS["video"])
    places = living.plan(data, TEN_FPS, wanted_until_deadline())
    assert [(each.place, each.start_s, each.end_s) for each in places] == [
        msgspec.structs.astuple(piece) for piece in clip.pieces
    ]
    made = list(living.decode(data, TEN_FPS, [1, 3], wanted_until_deadline()))
    assert [(each.index, each.start_s) for each in made] == [(1, 0.2), (3, 0.6)]
    for each in made:
        assert np.array_equal(each.arrays["frames"], clip.decode(clip.pieces[each.index]))
        assert each.seconds > 0


def test_a_decoder_that_is_left_early_takes_the_next_clip(living: ClipDecoderPool) -> None:
    before = pids()
    for _ in range(2):
        with closing(living.decode(video(10), TEN_FPS, range(5), wanted_until_deadline())) as slices:
            assert next(slices).index == 0
    assert len(decoded(living, video(10), fps=10.0)) == 5
    assert pids() == before


def test_a_slice_is_made_only_when_it_is_asked_for(living: ClipDecoderPool, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    real = ClipDecoder.tell

    def tell(decoder: ClipDecoder, message: msgspec.Struct) -> None:
        told.append(type(message).__name__)
        real(decoder, message)

    monkeypatch.setattr(ClipDecoder, "tell", tell)
    with closing(living.decode(video(10), TEN_FPS, range(5), wanted_until_deadline())) as slices:
        for num in range(1, 4):
            next(slices)
            assert told == ["OpenFile", *["DecodeSlice"] * num]
    assert told[-1] == "CloseFile"


class KillingBudget(PixelBudget):
    """Kills the decoder that has opened a video, as often as it is told."""

    def __init__(self, how: signal.Signals, num_times: int) -> None:
        super().__init__(1 << 30)
        self._how = how
        self._left = num_times
        self._others = pids()
        self.asked: list[int] = []

    @contextmanager
    def room_for(self, pixels: int, is_wanted: Callable[[], bool]) -> Iterator[None]:
        self.asked.append(pixels)
        if self._left:
            self._left -= 1
            (victim,) = pids(self._others)
            os.kill(victim, self._how)
        yield


def test_a_decoder_that_is_killed_between_two_slices_costs_nothing() -> None:
    data, others = video(10), pids()
    with pool_of() as pool:
        expected = [each.arrays["frames"].tobytes() for each in decoded(pool, data, fps=10.0)]
        made = []
        with closing(pool.decode(data, TEN_FPS, range(5), wanted_until_deadline())) as slices:
            for each in slices:
                made.append(each)
                if each.index == 1:
                    (victim,) = pids(others)
                    os.kill(victim, signal.SIGKILL)
        assert [each.index for each in made] == [0, 1, 2, 3, 4]
        assert [each.arrays["frames"].tobytes() for each in made] == expected
        assert victim not in pids()


@pytest.mark.parametrize(("how", "expected"), [(signal.SIGKILL, ServiceUnavailable), (signal.SIGSEGV, CorruptClip)])
def test_the_second_decoder_that_dies_of_a_clip_is_the_last(how: signal.Signals, expected: type[MmcachedError]) -> None:
    budget = KillingBudget(how, 2)
    with pool_of(budget=budget) as pool:
        error = outcome(pool, video(4))
        assert type(error) is expected
        assert how.name in str(error)
        assert decoded(pool, video(4)), "the next one is decoded"
        assert budget.asked == [64 * 48] * 3, "a frame's pixels count"


def test_a_stopped_decoder_is_killed_when_nobody_wants_its_clip_any_more() -> None:
    others = pids()
    with pool_of(budget=KillingBudget(signal.SIGSTOP, 1)) as pool:
        gone = threading.Event()
        slices = pool.decode(video(4), TEN_FPS, [0], lambda: not gone.is_set())
        threading.Timer(0.05, gone.set).start()
        with pytest.raises(NotWantedError):
            next(slices)
        assert pids() == others


def test_cpu_time_of_a_clip_is_limited_by_the_kernel() -> None:
    """All slices together: none of them takes so long."""
    many = avi([jpeg(1280, 720)] * 200, (1280, 720))
    with pool_of(clip_cpu_s=0.2) as pool:
        error = outcome(pool, many, fps=10.0)
        assert isinstance(error, ClipTooLarge)
        assert "0.2 s of CPU time for a video" in str(error)
        assert decoded(pool, video(4))


def test_memory_of_a_decoder_is_limited_by_the_kernel() -> None:
    with pool_of(clip_memory_mb=64) as pool:
        error = outcome(pool, avi([jpeg(4096, 2144)] * 2, (4096, 2144)))
        assert isinstance(error, ClipTooLarge)
        assert "67108864 bytes of memory" in str(error)
        assert decoded(pool, video(4))


def test_a_clip_has_so_many_slices_and_no_more() -> None:
    """Their list is short, however long the film may be: the frontend reads it in its own memory."""
    frame, every = jpeg(16, 16), ClipOptions("video", fps=100.0)
    with pool_of(max_clip_frames=1 << 16) as pool:
        places = pool.plan(avi([frame] * 2 * MAX_SLICES, (16, 16), fps=100), every, wanted_until_deadline())
        assert len(places) == MAX_SLICES
        error = outcome(pool, avi([frame] * (2 * MAX_SLICES + 1), (16, 16), fps=100), fps=100.0)
        assert isinstance(error, ClipTooLarge)
        assert f"{MAX_SLICES + 1} slices" in str(error)
        assert f"1 to {MAX_SLICES}" in str(error)


@pytest.mark.parametrize("num_frames", [2, 16])
def test_the_longest_list_of_slices_fits(num_frames: int) -> None:
    place = (*range((1 << 16) - num_frames, 1 << 16), 1 << 16, 1 << 16)
    pieces = [Piece(place, 86_400.25, 86_400.75)] * min(MAX_SLICES, (1 << 16) // num_frames)
    encoded = msgspec.msgpack.encode(pieces)
    assert len(encoded) <= MAX_LIST_BYTES // 2
    assert PIECES.decode(encoded) == pieces


def test_there_are_no_processes_for_what_nobody_sends() -> None:
    others = pids()
    with pool_of(3) as pool:
        assert pids() == others
        for _ in range(2):
            assert decoded(pool, video(4))
        assert len(pids(others)) == 1


@pytest.mark.parametrize("modality", ["video", "audio"])
def test_a_decoder_has_one_thread_and_writes_no_log(
    living: ClipDecoderPool, modality: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    data = video(4)[:-40] if modality == "video" else sound(1.0, format="FLAC")[:5000]
    outcome(living, data, modality)
    assert capfd.readouterr() == ("", "")
    for pid in pids():
        assert len(list(Path(f"/proc/{pid}/task").iterdir())) == 1


VIDEO_SHAPE, AUDIO_SHAPE = (2, 32, 32, 3), (100,)


@pytest.mark.parametrize(
    ("modality", "said"),
    [
        ("video", [Ready(), ClipOpened(1), SliceMade(VIDEO_SHAPE, 0.0, 1.0)]),  # there is nothing
        ("video", [Ready(), ClipOpened(1), SliceMade((2, 33, 32, 3), 0.0, 1.0)]),
        ("video", [Ready(), ClipOpened(1), SliceMade((3, 32, 32, 3), 0.0, 1.0)]),
        ("video", [Ready(), ClipOpened(1), SliceMade((2, 32, 32 * 65, 3), 0.0, 1.0)]),
        ("video", [Ready(), ClipOpened(1), SliceMade(AUDIO_SHAPE, 0.0, 1.0)]),
        ("video", [Ready(), ClipOpened(1), ClipPlanned(1)]),
        ("video", [Ready(), SliceMade(VIDEO_SHAPE, 0.0, 1.0)]),
        ("video", [Ready(), {"type": "ClipOpened", "pixels": -1}]),
        ("video", [Ready(), ClipOpened(1), OutOfMemory()]),
        ("audio", [Ready(), ClipOpened(0), SliceMade(AUDIO_SHAPE, 0.0, 1.0)]),
        ("audio", [Ready(), ClipOpened(0), SliceMade((32_001,), 0.0, 1.0)]),
        ("audio", [Ready(), ClipOpened(0), SliceMade((10, 10), 0.0, 1.0)]),
        ("audio", [Ready(), ClipOpened(0), SliceMade(AUDIO_SHAPE, 0.0, float("nan"))]),
        ("plan", [Ready(), {"type": "ClipPlanned", "num_bytes": MAX_LIST_BYTES + 1}]),
        ("plan", [Ready(), ClipPlanned(MAX_LIST_BYTES)]),
        ("plan", [Ready(), ClipPlanned(5)]),
        ("plan", [Ready(), ClipOpened(1)]),
    ],
    ids=str,
)
def test_a_decoder_that_says_what_may_not_be_said_is_ended(
    modality: str, said: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_liar(said, tmp_path, monkeypatch)
    decoder = ClipDecoder(SETTINGS["audio" if modality == "audio" else "video"])

    def ask() -> None:
        decoder.start(lambda: True)
        if modality == "plan":
            decoder.plan(b"file", TEN_FPS, lambda: True)
        slices = decoder.slices(
            b"file", TEN_FPS, [0], is_wanted=lambda: True, before_pixels=lambda pixels: nullcontext()
        )
        next(slices)

    with pytest.raises(DecoderDiedError):
        ask()
    assert not decoder.is_alive
    decoder.close()


def test_decoders_that_do_not_start_fail_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    with pool_of() as pool:
        with monkeypatch.context() as broken:
            broken.setattr(sys, "executable", "/bin/false")
            error = outcome(pool, video(4))
            assert isinstance(error, ServiceUnavailable)
        assert decoded(pool, video(4))


def test_frames_may_be_as_large_as_a_checkpoint_says() -> None:
    sizes = FrameSizes(side=28, min_pixels=784, max_pixels=28 * 28 * 400, lifts=False)
    decoder = ClipDecoder(msgspec.structs.replace(SETTINGS["video"], sizes=sizes))
    with closing(decoder):
        decoder.start(lambda: True)
        data, free = video(2, size=(640, 480)), nullcontext()
        slices = decoder.slices(data, TEN_FPS, [0], is_wanted=lambda: True, before_pixels=lambda pixels: free)
        (made,) = slices
    assert made.arrays["frames"].shape == (2, 476, 644, 3)


def test_a_decoder_ends_after_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenCV keeps some kilobytes of each."""
    monkeypatch.setattr(clip_decoder_process, "MAX_FILES", 3)
    others = pids()
    with pool_of() as pool:
        assert isinstance(outcome(pool, b"nonsense"), CorruptClip)
        first = pids(others)
        assert len(first) == 1
        assert decoded(pool, video(4)), "its second file, and its third"
        assert pids(others) == []
        assert decoded(pool, video(4))
        assert pids(others) not in ([], first)
