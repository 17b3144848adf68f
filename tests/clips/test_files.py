"""The files that other tests are made with: always the same bytes, and the same beginning if one is longer."""

from __future__ import annotations

import io
from typing import Any, cast

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from tests.clips.files import sound, video, video_and_longer


def frames(data: bytes) -> list[npt.NDArray[Any]]:
    stream = cast("cv2.IStreamReader", io.BytesIO(data))  # its stub says nothing of file objects
    capture = cv2.VideoCapture(stream, cv2.CAP_FFMPEG, [])
    found = []
    while (read := capture.read())[0]:
        found.append(read[1])
    return found


@pytest.mark.parametrize("codec", ["mp4v", "MJPG"])
def test_a_video_is_always_the_same_and_its_frames_differ(codec: str) -> None:
    data = video(6, codec=codec)
    assert data == video(6, codec=codec)
    assert data != video(6, codec=codec, seed=1)
    decoded = frames(data)
    assert len({each.tobytes() for each in decoded}) == 6
    assert decoded[0].shape == (48, 64, 3)


def test_a_longer_video_begins_with_the_same_frames() -> None:
    short, long = video_and_longer(6, 4)
    assert short != long[: len(short)]
    assert len(frames(long)) == 10
    assert all(map(np.array_equal, frames(short), frames(long)))


@pytest.mark.parametrize("format_", ["WAV", "FLAC", "OGG"])
def test_a_sound_has_its_length_and_channels(format_: str) -> None:
    data = sound(0.5, rate=8000, channels=2, format=format_)
    read, rate = soundfile.read(io.BytesIO(data))
    assert read.shape == (4000, 2)
    assert rate == 8000
    if format_ != "OGG":  # whose streams have a number that is drawn
        assert data == sound(0.5, rate=8000, channels=2, format=format_)
