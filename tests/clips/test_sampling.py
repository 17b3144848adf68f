"""Which frames are taken and where sounds are cut: two clips of one file share what they have in common."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcached.clips.sampling import RATE, Piece, check_options, sample_audio, sample_video
from mmcached.clips.settings import ClipSettings
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ClipTooLarge, EmptyClip, InvalidRequest
from mmcached.wire.messages.parts import ClipOptions

VIDEO = ClipSettings.from_config(ServiceConfig(), "video")
AUDIO = ClipSettings.from_config(ServiceConfig(), "audio")
TEN_FPS = [number / 10 for number in range(40)]
SIZE = (64, 64)


def pieces(**options: Any) -> list[Piece]:
    return sample_video(TEN_FPS, 4.0, SIZE, ClipOptions("video", **options), VIDEO)


def frames(**options: Any) -> list[tuple[int, ...]]:
    return [piece.place[:2] for piece in pieces(**options)]


def test_frames_are_those_nearest_to_times_since_the_file_s_beginning() -> None:
    assert frames(fps=2.0) == [(0, 5), (10, 15), (20, 25), (30, 35)]
    assert frames(fps=4.0, end_s=1.0) == [(0, 2), (5, 7)], "of two at one distance the earlier one"
    assert pieces(fps=2.0, end_s=1.5) == [Piece((0, 5, 64, 64), 0.0, 1.0), Piece((10, 10, 64, 64), 1.0, 1.5)]


@pytest.mark.parametrize("rate", [Fraction(25), Fraction(30), Fraction(24_000, 1001), Fraction(10)])
@pytest.mark.parametrize("fps", [Fraction(60), Fraction(50), Fraction(20), Fraction(15), Fraction(48_000, 1001)])
def test_of_two_frames_at_one_distance_the_earlier_one_is_taken(rate: Fraction, fps: Fraction) -> None:
    """Exact for times that are rounded to microseconds, as decoders give them."""
    exact = [number / rate for number in range(200)]
    options = ClipOptions("video", end_s=float(100 / rate), fps=float(fps))
    found = sample_video([round(float(time), 6) for time in exact], float(200 / rate), SIZE, options, VIDEO)
    taken = [frame for piece in found for frame in piece.place[:2]]
    nearest = [
        min(range(200), key=lambda number: (abs(exact[number] - each / fps), number)) for each in range(len(taken))
    ]
    assert taken[:-1] == nearest[:-1], "the last one may be half a pair"


def test_half_a_pair_has_its_own_frame_twice() -> None:
    assert frames(fps=2.0, start_s=0.5, end_s=2.5) == [(5, 5), (10, 15), (20, 20)]


def test_a_clip_that_is_faster_than_its_file_shows_frames_again() -> None:
    assert frames(fps=20.0, end_s=0.2) == [(0, 0), (1, 1)]


def test_frames_at_uneven_distances_are_taken_where_they_are_shown() -> None:
    times = [0.0, 0.1, 0.15, 2.0, 2.9]
    found = sample_video(times, 3.8, SIZE, ClipOptions("video", fps=1.0), VIDEO)
    assert [piece.place[:2] for piece in found] == [(0, 2), (3, 4)]


@pytest.mark.parametrize(
    ("num_frames", "expected"),
    [(1, [(0, 0)]), (2, [(0, 39)]), (5, [(0, 9), (19, 29), (39, 39)]), (4, [(0, 13), (26, 39)])],
)
def test_a_number_of_frames_is_spread_evenly(num_frames: int, expected: list[tuple[int, int]]) -> None:
    assert frames(num_frames=num_frames) == expected


def test_no_more_frames_are_spread_than_there_are() -> None:
    assert frames(num_frames=100, start_s=0.5, end_s=0.8) == [(5, 6), (7, 7)]
    assert frames(num_frames=3, start_s=0.51, end_s=0.52) == [(5, 5)], "the one that is shown then"


@given(st.integers(1, 30), st.integers(0, 39), st.integers(1, 40), st.integers(0, 39), st.integers(1, 40))
def test_windows_of_a_file_share_the_slices_in_both(
    fps: int, start: int, length: int, start2: int, length2: int
) -> None:
    """But for the pairs that their edges cut."""

    def inner(first: int, num: int) -> set[tuple[tuple[int, ...], float]]:
        try:
            found = pieces(fps=float(fps), start_s=first / 10, end_s=(first + num) / 10)
        except InvalidRequest:  # between two of the times
            return set()
        return {(piece.place, piece.start_s) for piece in found[1:-1]}

    ends = min(start + length, start2 + length2)
    common = {each for each in inner(start, length) if start2 / 10 + 2 / fps < each[1] < ends / 10 - 2 / fps}
    assert common <= inner(start2, length2)


def test_a_sound_is_cut_on_a_grid_since_its_beginning() -> None:
    found = sample_audio(5 * RATE, ClipOptions("audio", start_s=0.5), AUDIO)
    assert [piece.place for piece in found] == [(8000, 24_000), (32_000, 32_000), (64_000, 16_000)]
    assert [(piece.start_s, piece.end_s) for piece in found] == [(0.5, 2.0), (2.0, 4.0), (4.0, 5.0)]
    found = sample_audio(5 * RATE, ClipOptions("audio", start_s=2.0, end_s=4.0), AUDIO)
    assert [piece.place for piece in found] == [(32_000, 32_000)]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        (ClipOptions("video", 2.0, 1.0, fps=1.0), InvalidRequest, "end_s = 1.0"),
        (ClipOptions("video"), InvalidRequest, "neither fps nor num_frames"),
        (ClipOptions("video", fps=1.0, num_frames=2), InvalidRequest, "fps and num_frames"),
        (ClipOptions("audio", fps=1.0), InvalidRequest, "a sound none"),
        (ClipOptions("video", num_frames=769), ClipTooLarge, "limits.max_clip_frames"),
        (ClipOptions("video", fps=1000.0), ClipTooLarge, "4000 frames"),
        (ClipOptions("video", 4.0, fps=1.0), InvalidRequest, "the file ends at 4.000 s"),
        (ClipOptions("video", 0.6, 0.9, fps=1.0), InvalidRequest, "no time k / 1.0 lies in it"),
        (ClipOptions("audio", 3.99999), InvalidRequest, "there is no sample in it"),
    ],
)
def test_what_cannot_be_is_refused(options: ClipOptions, error: type[InvalidRequest], says: str) -> None:
    settings = VIDEO if options.modality == "video" else AUDIO

    def sample() -> None:
        check_options(options, settings)
        if options.modality == "video":
            sample_video(TEN_FPS, 4.0, SIZE, options, settings)
        else:
            sample_audio(4 * RATE, options, settings)

    with pytest.raises(error) as raised:
        sample()
    assert type(raised.value) is error
    assert says in str(raised.value)


def test_seconds_are_limited_where_the_clip_ends() -> None:
    short = msgspec.structs.replace(AUDIO, max_s=3.0)
    with pytest.raises(ClipTooLarge, match="max_clip_s"):
        sample_audio(10 * RATE, ClipOptions("audio"), short)
    assert sample_audio(10 * RATE, ClipOptions("audio", end_s=3.0), short)


def test_what_is_empty_is_called_so() -> None:
    with pytest.raises(EmptyClip):
        sample_video([], 1.0, SIZE, ClipOptions("video", fps=1.0), VIDEO)
    with pytest.raises(EmptyClip):
        sample_audio(0, ClipOptions("audio"), AUDIO)
