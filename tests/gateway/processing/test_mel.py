"""The spectrogram has the bands and the floor of Whisper's; `tests/hosts/transformers` compares bit for bit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from mmcached.gateway.processing.mel import log_mel


def tone(hertz: float, num_samples: int = 16_000) -> npt.NDArray[np.float32]:
    return np.sin(2 * np.pi * hertz * np.arange(num_samples) / 16_000).astype(np.float32)


def bands_of(samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return log_mel(samples, num_bands=80, n_fft=400, hop=160)


def test_a_higher_tone_is_in_a_higher_band() -> None:
    loudest = [int(bands_of(tone(hertz))[:, 50].argmax()) for hertz in (100, 440, 1000, 2000, 7000)]
    assert loudest == sorted(set(loudest))
    assert 20 < loudest[2] < 30, "1,000 Hz are 15 of 45.2 mel"


def test_ten_times_as_loud_is_half_a_unit_more() -> None:
    quiet, loud = (bands_of(np.float32(volume) * tone(440)).max() for volume in (0.05, 0.5))
    assert loud - quiet == pytest.approx(0.5, abs=1e-4)


def test_silence_is_the_floor() -> None:
    assert np.array_equal(bands_of(np.zeros(1600, np.float32)), np.full((80, 10), -1.5, np.float32))
