"""Decodes the windows of a sound that are its slices: mono, 16,000 samples a second, float32.

    bytes ──> container ──> libsndfile, block by block ──> mean of all channels ──> resampled, with its surroundings

A sample does not depend on the window that contains it: the resampling filter sees the file's own samples around a
window, and zeros only before the beginning and behind the end of the file. Formats of independent samples are read from
the start of a window. Ogg and MP3 are read from the beginning, because their output depends on where decoding begins;
so is a FLAC file without a length, once more, to count.

A header's length is compared with the decoded samples: a shorter file is damaged, and samples beyond the length are
ignored. The limit of seconds applies to that length, so hours of silence in a few kilobytes are refused before they are
decoded. The frames of an MP3 file without a table in its first one are counted. An Ogg file of several chained sounds
is refused, because libsndfile would decode only the first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil, gcd

import numpy as np
import numpy.typing as npt
import soundfile
from scipy.signal import firwin, resample_poly

from mmcached.clips.containers import check_is_one_sound, container_of, first_mpeg_frame
from mmcached.clips.in_place import Contents, InPlace
from mmcached.clips.sampling import RATE, Piece, check_options, sample_audio
from mmcached.clips.settings import ClipSettings
from mmcached.wire.errors import ClipTooLarge, CorruptClip, MmcachedError
from mmcached.wire.messages.parts import ClipOptions

_FIELD = "audio"

_FORMATS = ("WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3")
_SEEKABLE = ("PCM_", "FLOAT", "DOUBLE", "ULAW", "ALAW")
"""Name prefixes of the sample formats whose samples are independent of each other."""

_MIN_RATE, _MAX_RATE = 1000, 768_000
_MAX_FACTOR = 1 << 16
"""Limit on the up and down factors of resampling; the filter has twenty times as many values."""

_BLOCK = 1 << 16
"""Samples of all channels read at a time."""

_UNKNOWN = 1 << 62
"""From this length on, a file's length is unknown."""


class _Stream(soundfile.SoundFile):  # type: ignore[misc]
    """A sound that is read sequentially.

    Its base would seek after each block, which changes the next block of an MP3 file, and would lose the end of a file
    of unknown length.
    """

    def seekable(self) -> bool:
        return False


class _Unmeasured(InPlace):
    """A file that claims to be empty, and is read to its end.

    libmpg123 takes the number of samples from the table in an MP3 file's first frame. Without a table it guesses from
    the file's length, and counts the frames only where that is 0.
    """

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return super().seek(0) if whence == os.SEEK_END else super().seek(offset, whence)


class Sound:
    """An open sound. `pixels` is always 0."""

    pixels = 0

    def __init__(self, data: Contents, options: ClipOptions, settings: ClipSettings) -> None:
        """Open a sound, without decoding.

        Raises:
            InvalidRequest: (often a subclass) It is not a sound, or exceeds a limit.
        """
        check_options(options, settings)
        if container_of(data, "audio") == "ogg":
            check_is_one_sound(data)
        self._data = data
        self._mpeg = first_mpeg_frame(data)
        with _typed_errors(len(data)):
            self._begin()
            self._check(settings)
            self._can_seek = self._stream.subtype.startswith(_SEEKABLE)
            divisor = gcd(self._stream.samplerate, RATE)
            self._up, self._down = RATE // divisor, self._stream.samplerate // divisor
            self._check_factors()
            self._num_samples = self._stream.frames
            if self._num_samples >= _UNKNOWN:
                self._num_samples = self._count(options, settings)
                self._stream.close()
                self._begin()
        self.pieces = sample_audio(ceil(self._num_samples * self._up / self._down), options, settings)
        self._filter: npt.NDArray[np.float32] | None = None

    def decode(self, piece: Piece) -> npt.NDArray[np.float32]:
        """Return the samples of a slice, cheapest in the order of `pieces`; CorruptClip if they cannot be decoded."""
        first, num = piece.place
        with _typed_errors(len(self._data)):
            is_plain = self._up == self._down
            return _finite(self._samples(first, first + num) if is_plain else self._resampled(first, num))

    def close(self) -> None:
        self._stream.close()

    # ---- limits

    def _check(self, settings: ClipSettings) -> None:
        stream = self._stream
        if stream.format not in _FORMATS:
            raise CorruptClip(_FIELD, stream.format, f"is not one of {', '.join(_FORMATS)}")
        if stream.channels > settings.max_channels:
            limit = f"at most {settings.max_channels} channels (limits.max_audio_channels)"
            raise ClipTooLarge(_FIELD, f"{stream.channels} channels", limit)
        if not _MIN_RATE <= stream.samplerate <= _MAX_RATE:
            limit = f"must be {_MIN_RATE} to {_MAX_RATE}"
            raise CorruptClip(_FIELD, f"{stream.samplerate} samples a second", limit)

    def _check_factors(self) -> None:
        if max(self._up, self._down) > _MAX_FACTOR:
            limit = f"cannot be brought to {RATE} with factors up to {_MAX_FACTOR}"
            raise CorruptClip(_FIELD, f"{self._stream.samplerate} samples a second", limit)

    def _count(self, options: ClipOptions, settings: ClipSettings) -> int:
        """Return the number of samples of a file of unknown length, counted up to the wanted end."""
        end_s = settings.max_s if options.end_s is None else min(options.end_s, settings.max_s)
        enough = ceil((end_s + 1) * self._stream.samplerate)
        num = 0
        while num < enough and (block := len(self._read(_BLOCK))):
            num += block
        return num

    # ---- samples of the file

    def _begin(self) -> None:
        self._stream = _Stream(InPlace(self._data) if self._mpeg is None else _Unmeasured(self._data, self._mpeg))
        self._next = 0  # next sample of the stream
        self._kept = np.zeros(0, np.float32)  # samples before it

    def _samples(self, first: int, behind: int) -> npt.NDArray[np.float32]:
        """Return samples of the file, with all channels averaged."""
        if first < self._next - len(self._kept):
            self._stream.close()
            self._begin()
        if self._can_seek and first > self._next:
            self._stream.seek(first)
            self._next, self._kept = first, self._kept[:0]
        while self._next < first:
            self._read_on(min(_BLOCK, first - self._next))
            self._kept = self._kept[:0]
        parts = [self._kept[len(self._kept) - (self._next - first) :]]
        while self._next < behind:
            parts.append(self._read_on(min(_BLOCK, behind - self._next)))
        self._kept = np.concatenate(parts)
        return self._kept[: behind - first]

    def _read_on(self, num: int) -> npt.NDArray[np.float32]:
        mono = self._read(num)
        self._next += len(mono)
        if len(mono) < num:
            limit = f"the file ends after {self._next}"
            raise CorruptClip(_FIELD, f"{self._num_samples} samples", limit)
        return mono

    def _read(self, num: int) -> npt.NDArray[np.float32]:
        block: npt.NDArray[np.float32] = self._stream.read(num, dtype="float32", always_2d=True)
        with np.errstate(all="ignore"):
            mono: npt.NDArray[np.float32] = block.mean(axis=1, dtype=np.float32)
        return _finite(mono)

    # ---- samples at 16,000 a second

    def _resampled(self, first: int, num: int) -> npt.NDArray[np.float32]:
        """Return samples at 16,000 a second, equal to those of the whole file's resampling."""
        up, down = self._up, self._down
        reach = 10 * max(up, down)  # of the filter to either side, at the product of both rates
        if self._filter is None:
            values = firwin(2 * reach + 1, 1 / max(up, down), window=("kaiser", 5.0))
            self._filter = values.astype(np.float32)
        # A multiple of `down`, so that the part's first sample coincides with one of the result.
        begin = max(0, (first * down - reach) // up) // down * down
        end = min(self._num_samples, -(-((first + num - 1) * down + reach) // up) + 1)
        part: npt.NDArray[np.float32] = resample_poly(self._samples(begin, end), up, down, window=self._filter)
        before = first - begin // down * up
        if len(part) < before + num:
            raise CorruptClip(_FIELD, f"{self._num_samples} samples", f"none at {first} + {num}")
        return np.ascontiguousarray(part[before : before + num])


def _finite(samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    if not np.isfinite(samples).all():
        raise CorruptClip(_FIELD, "a sample is infinite or not a number", "samples are finite numbers")
    return samples


@contextmanager
def _typed_errors(num_bytes: int) -> Iterator[None]:
    try:
        yield
    except (MmcachedError, MemoryError):
        raise
    except soundfile.LibsndfileError as error:
        raise CorruptClip(_FIELD, f"{num_bytes} bytes", f"cannot be decoded: {error.error_string}") from error
    except Exception as error:
        reason = f"cannot be decoded: {type(error).__name__}: {str(error)[:120]}"
        raise CorruptClip(_FIELD, f"{num_bytes} bytes", reason) from error
