"""The frames that a video gives: those of its plan, however one gets to them, upright, at their size."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from mmcached.clips.frame_sizes import FrameSizes
from mmcached.clips.settings import ClipSettings
from mmcached.clips.video import OpenVideo
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages.parts import ClipOptions
from tests.clips.boxes import Packet, h264, jpeg, matroska
from tests.clips.files import frame, video

SETTINGS = ClipSettings.from_config(ServiceConfig(), "video")


def opened(data: bytes, **options: Any) -> OpenVideo:
    options = options if "num_frames" in options else {"fps": 10.0, **options}
    return OpenVideo(data, ClipOptions("video", **options), SETTINGS)


def all_frames(data: bytes) -> dict[int, bytes]:
    """Return the frames of a video by their numbers, decoded one after the other."""
    clip = opened(data, num_frames=768)
    return {
        number: pixels.tobytes()
        for piece in clip.pieces
        for number, pixels in zip(piece.place[:2], clip.decode(piece), strict=True)
    }


def test_frames_are_red_first_and_scaled_as_pictures_are() -> None:
    data = video(4, codec="FFV1")
    clip = opened(data)
    assert [piece.place for piece in clip.pieces] == [(0, 1, 64, 64), (2, 3, 64, 64)]
    found = clip.decode(clip.pieces[1])
    assert found.shape == (2, 64, 64, 3)
    expected = Image.fromarray(cv2.cvtColor(frame(3), cv2.COLOR_BGR2RGB)).resize((64, 64), Image.Resampling.BICUBIC)
    assert np.abs(found[1].astype(int) - np.asarray(expected)).mean() < 3, "but for what its colours lose"


def of_h264(num_frames: int) -> bytes:
    packets, private = h264(range(30, 30 + 3 * num_frames, 3))
    return matroska(packets, (64, 48), "V_MPEG4/ISO/AVC", private)


@pytest.mark.parametrize("codec", ["mp4v .mp4", "MJPG .avi", "VP90 .webm", "MPG2 .mkv", "H.264"])
def test_a_frame_is_the_same_however_one_gets_to_it(codec: str) -> None:
    """From the beginning, over a key frame, backwards; MPEG-2 has frames that look ahead."""
    name, _, suffix = codec.partition(" ")
    data = video(60, codec=name, suffix=suffix, size=(64, 64)) if suffix else of_h264(60)
    expected = all_frames(data)
    assert len(set(expected.values())) == 60
    clip = opened(data, fps=10.0 if suffix else 25.0)
    for number in (20, 3, 2, 27, 18, 29, 0):
        first, second = (each.tobytes() for each in clip.decode(clip.pieces[number]))
        assert (first, second) == (expected[2 * number], expected[2 * number + 1]), number


def test_frames_at_uneven_times_are_found_where_they_are_shown() -> None:
    times = [*range(0, 400, 10), *range(400, 6400, 300)]
    data = matroska([Packet(time_ms, jpeg(64, 64, 4 * number)) for number, time_ms in enumerate(times)], (64, 64))
    clip = opened(data, fps=2.0)
    assert [piece.place[:2] for piece in clip.pieces] == [
        (0, 40),
        (42, 44),
        (45, 47),
        (49, 50),
        (52, 54),
        (55, 57),
        (59, 59),
    ]
    for piece in reversed(clip.pieces):
        shades = [round(float(each.mean()) / 4) for each in clip.decode(piece)]
        assert shades == list(piece.place[:2])


def test_only_what_leads_to_a_wanted_frame_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    grabs = []
    real = cv2.VideoCapture

    class Counted:
        def __init__(self, *arguments: Any) -> None:
            self._capture = real(*arguments)
            self._is_decoder = -1 not in arguments[2]

        def __getattr__(self, name: str) -> Any:
            if name in ("grab", "retrieve") and self._is_decoder:
                grabs.append(name)
            return getattr(self._capture, name)

    monkeypatch.setattr(cv2, "VideoCapture", Counted)
    clip = opened(video(60), fps=2.0)
    assert grabs == [], "to open it decodes nothing"
    clip.decode(clip.pieces[0])
    assert grabs == ["grab", "retrieve", "grab", "grab", "grab", "grab", "grab", "retrieve"]
    grabs.clear()
    clip.decode(clip.pieces[5])  # frames 50 and 55, from a key frame before
    assert grabs.count("grab") < 10
    assert grabs.count("retrieve") == 2


def test_a_longer_file_shares_its_slices() -> None:
    short, long = (opened(video(num, codec="MJPG", suffix=".mp4"), fps=2.0) for num in (20, 30))
    assert long.pieces[:2] == short.pieces
    assert all(np.array_equal(long.decode(piece), short.decode(piece)) for piece in short.pieces)


def turned(data: bytes) -> bytes:
    """Return an MP4 file that is to be shown turned by a quarter to the right."""
    place = data.index(b"tkhd") + 4 + 40
    matrix = np.array([0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30], ">i4").tobytes()
    return data[:place] + matrix + data[place + 36 :]


def test_frames_are_upright() -> None:
    data = video(4, codec="MJPG", suffix=".mp4", size=(128, 64))
    lying, upright = opened(data), opened(turned(data))
    assert lying.pieces[0].place == (0, 1, 128, 64)
    assert upright.pieces[0].place == (0, 1, 64, 128)
    expected = np.rot90(lying.decode(lying.pieces[0])[0], -1)
    assert np.array_equal(upright.decode(upright.pieces[0])[0], expected)


def test_frames_have_the_size_that_a_checkpoint_says() -> None:
    sizes = FrameSizes(side=28, min_pixels=784, max_pixels=28 * 28 * 6, lifts=False)
    settings = ClipSettings.from_config(ServiceConfig(), "video", sizes=sizes)
    clip = OpenVideo(video(4, codec="FFV1"), ClipOptions("video", fps=10.0), settings)
    assert clip.pieces[0].place == (0, 1, 56, 56)
    assert clip.decode(clip.pieces[0]).shape == (2, 56, 56, 3)


def test_a_slice_may_have_more_than_two_frames() -> None:
    settings = ClipSettings.from_config(ServiceConfig(), "video", num_frames=4)
    data = video(10, codec="FFV1")
    for options in ({"fps": 10.0}, {"num_frames": 10}):
        clip = OpenVideo(data, ClipOptions("video", **options), settings)
        places = [piece.place[:4] for piece in clip.pieces]
        assert places == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 9, 9)]
        assert clip.decode(clip.pieces[2]).shape == (4, 64, 64, 3)
    assert [piece.start_s for piece in clip.pieces] == [0.0, 0.4, 0.8]
