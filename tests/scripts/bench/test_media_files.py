"""The films and sounds of the benchmark: new ones are new, and a longer film goes on where a shorter one ends."""

from __future__ import annotations

import io
from typing import cast

import cv2
import numpy as np
import numpy.typing as npt
import soundfile

from scripts.bench.media_files import RATE, SAMPLES_PER_S, film, sound

SIZE = (64, 48)


def frames(data: bytes) -> list[npt.NDArray[np.uint8]]:
    capture = cv2.VideoCapture(cast("cv2.IStreamReader", io.BytesIO(data)), cv2.CAP_FFMPEG, [])
    found = []
    while (answer := capture.read())[0]:
        found.append(answer[1].astype(np.uint8))
    return found


def test_a_longer_film_begins_with_the_frames_of_a_shorter_one() -> None:
    short, longer = frames(film(1, SIZE, seed=3)), frames(film(2, SIZE, seed=3))
    assert (len(short), len(longer)) == (RATE, 2 * RATE)
    assert all(map(np.array_equal, short, longer))
    assert not np.array_equal(short[0], short[-1]), "something moves"


def test_no_two_films_or_sounds_are_alike() -> None:
    one, other = (frames(film(0.1, SIZE, seed))[0] for seed in (1, 2))
    assert not np.array_equal(one, other)
    assert sound(0.1, seed=1) != sound(0.1, seed=2)


def test_a_sound_has_two_channels() -> None:
    samples, rate = soundfile.read(io.BytesIO(sound(0.5, seed=1)))
    assert (samples.shape, rate) == ((SAMPLES_PER_S // 2, 2), SAMPLES_PER_S)
