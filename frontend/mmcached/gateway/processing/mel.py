"""Computes the log-mel spectrogram of a sound, as Whisper and later towers take it.

    samples ── windows of `n_fft`, one every `hop` ──> power of frequencies ──> of bands ──> logarithm, floor, scale

Equal bit for bit to Transformers' `WhisperFeatureExtractor` without torch; with torch, which computes in 32 bits, equal
to about 1e-5. Needs only numpy.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

RATE = 16_000
"""Samples per second."""
_HIGHEST_HZ = 8000.0
_LINEAR_HZ, _LINEAR_MEL = 1000.0, 15.0
_STEP = 27.0 / np.log(6.4)
"""Above `_LINEAR_HZ`, bands are spaced logarithmically: `_STEP` bands per natural logarithm."""
_FLOOR, _RANGE = 1e-10, 8.0


def log_mel(samples: npt.NDArray[np.float32], *, num_bands: int, n_fft: int, hop: int) -> npt.NDArray[np.float32]:
    """Return float32 (num_bands, len(samples) // hop); the samples are extended at both ends by their mirror image.

    >>> log_mel(np.zeros(1600, np.float32), num_bands=80, n_fft=400, hop=160).shape
    (80, 10)
    """
    whole = np.pad(samples, n_fft // 2, mode="reflect").astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(whole, n_fft)[::hop]
    # Rounded to 32 bits where Transformers keeps it so.
    spectrum = np.fft.rfft(windows * np.hanning(n_fft + 1)[:-1]).astype(np.complex64)
    power: npt.NDArray[Any] = np.abs(spectrum, dtype=np.float64) ** 2.0
    bands = np.log10(np.maximum(_FLOOR, np.dot(_filters(num_bands, n_fft).T, power.T))).astype(np.float32)[:, :-1]
    scaled: npt.NDArray[np.float32] = (
        np.maximum(bands, bands.max() - np.float32(_RANGE)) + np.float32(4.0)
    ) / np.float32(4.0)
    return scaled


@functools.cache
def _filters(num_bands: int, n_fft: int) -> npt.NDArray[np.float64]:
    """Return the share of each frequency in each band, (n_fft // 2 + 1, num_bands): triangles of equal area."""
    highest = _LINEAR_MEL + np.log(_HIGHEST_HZ / _LINEAR_HZ) * _STEP
    mels = np.linspace(0.0, highest, num_bands + 2)
    edges = 200.0 * mels / 3.0
    is_log = mels >= _LINEAR_MEL
    edges[is_log] = _LINEAR_HZ * np.exp(np.log(6.4) / 27.0 * (mels[is_log] - _LINEAR_MEL))
    frequencies = np.linspace(0, RATE // 2, n_fft // 2 + 1)[:, None]
    widths = np.diff(edges)
    rising, falling = (frequencies - edges[:-2]) / widths[:-1], (edges[2:] - frequencies) / widths[1:]
    triangles: npt.NDArray[np.float64] = np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (edges[2:] - edges[:-2]))
    return triangles
