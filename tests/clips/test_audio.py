"""The samples that a sound gives: a window is the same alone and as a part of the whole, at any rate."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import soundfile
from scipy.signal import resample_poly

from mmcached.clips.audio import Sound
from mmcached.clips.sampling import Piece
from mmcached.clips.settings import ClipSettings
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages.parts import ClipOptions
from tests.clips.files import encoded, samples, sound

SETTINGS = ClipSettings.from_config(ServiceConfig(), "audio")
SHORT = msgspec.structs.replace(SETTINGS, window_samples=1000)


def opened(data: bytes, settings: ClipSettings = SETTINGS, **options: Any) -> Sound:
    return Sound(data, ClipOptions("audio", **options), settings)


def whole(data: bytes) -> npt.NDArray[np.float32]:
    clip = opened(data, msgspec.structs.replace(SETTINGS, window_samples=1 << 30))
    (piece,) = clip.pieces
    return clip.decode(piece)


def test_samples_at_the_right_rate_are_those_of_the_file() -> None:
    data = sound(5.0, channels=2)
    expected = soundfile.read(io.BytesIO(data), dtype="float32")[0].mean(axis=1, dtype=np.float32)
    clip = opened(data, start_s=0.5)
    assert [piece.place for piece in clip.pieces] == [(8000, 24_000), (32_000, 32_000), (64_000, 16_000)]
    found = np.concatenate([clip.decode(piece) for piece in clip.pieces])
    assert np.array_equal(found, expected[8000:])
    assert (found.dtype.name, found.ndim) == ("float32", 1)


@pytest.mark.parametrize("rate", [8000, 11_025, 44_100, 48_000])
def test_other_rates_are_resampled_as_scipy_does_the_whole(rate: int) -> None:
    data = sound(2.0, rate=rate, format="FLAC")
    values = soundfile.read(io.BytesIO(data), dtype="float32")[0]
    assert np.array_equal(whole(data), resample_poly(values, 16_000, rate))


@pytest.mark.parametrize("format_", ["WAV", "FLAC", "OGG", "MP3"])
@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_a_window_does_not_depend_on_what_was_read_before(rate: int, format_: str) -> None:
    """Each alone, backwards, and from another start than the file's."""
    data = encoded(samples(0.7, rate=rate, channels=2), rate, format_)
    expected = whole(data)
    clip = opened(data, SHORT)
    for piece in reversed(clip.pieces):
        first, num = piece.place
        assert np.array_equal(clip.decode(piece), expected[first : first + num])
    other = opened(data, SHORT, start_s=0.31)
    assert set(other.pieces[1:]) < set(clip.pieces)
    first, num = other.pieces[0].place
    assert np.array_equal(other.decode(other.pieces[0]), expected[first : first + num])


def test_a_longer_file_shares_its_windows() -> None:
    short, long = opened(sound(4.0)), opened(sound(5.0))
    assert long.pieces[:2] == short.pieces
    assert all(np.array_equal(long.decode(piece), short.decode(piece)) for piece in short.pieces)


def of_unknown_length(data: bytes) -> bytes:
    """Return a FLAC file that does not say how many samples it has, as one that was written into a pipe."""
    place = 8 + 10
    fields = int.from_bytes(data[place : place + 8], "big")
    return data[:place] + (fields >> 36 << 36).to_bytes(8, "big") + data[place + 8 :]


def test_a_file_that_does_not_say_how_long_it_is_is_counted() -> None:
    data = sound(2.5, rate=8000, format="FLAC")
    clip = opened(of_unknown_length(data))
    assert clip.pieces == [Piece((0, 32_000), 0.0, 2.0), Piece((32_000, 8000), 2.0, 2.5)]
    assert np.array_equal(np.concatenate([clip.decode(piece) for piece in clip.pieces]), whole(data))
