"""Decodes the frames of a video's slices: RGB, upright, scaled for the encoder.

    bytes ──> container ──> OpenCV's FFmpeg, packets only ──> times and key frames of all frames ──> slices
                            OpenCV's FFmpeg, frames ────────> the wanted frames ──> RGB ──> scaled

A frame's number counts the shown frames, in the order of their times, from the first key frame on: packets hidden by
the edit list of an MP4 file do not count. A damaged packet without a frame is replaced by the next frame, or at the end
by the last one, if few are missing. Frames in between are decoded, but not converted; a jump to a key frame saves
decoding too. Frames from a key frame on are the same however it was reached, as far as the container's key frame flags
are correct.

Headers are not trusted: the number of frames is that of the packets, a size is checked, and a video may end early.
FFmpeg is restricted to three containers and no protocol. No threads. Non-square pixels are treated as square; of
several video tracks the first is taken.

torchcodec, which decodes faster, is not used: it could not be imported in any environment where it was tried.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import cast

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from mmcached.clips.containers import container_of
from mmcached.clips.edit_lists import ShownPart, parts_of
from mmcached.clips.frame_sizes import BICUBIC
from mmcached.clips.in_place import Contents, InPlace
from mmcached.clips.sampling import TIME_ERROR_S, Piece, check_options, sample_video
from mmcached.clips.settings import ClipSettings
from mmcached.pictures.grid import scaled_size
from mmcached.wire.errors import ClipTooLarge, CorruptClip, EmptyClip, MmcachedError
from mmcached.wire.messages.parts import ClipOptions

_FIELD = "video"

_FFMPEG_OPTIONS = (
    "protocol_whitelist;none|format_whitelist;mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi|enable_drefs;0|max_streams;{}"
)
_MANY_STREAMS = 1000

_OPEN = [
    *(cv2.CAP_PROP_N_THREADS, 1),
    # Wall-clock timeouts are off: the kernel limits CPU time.
    *(cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, 0),
    *(cv2.CAP_PROP_READ_TIMEOUT_MSEC, 0),
]
_PACKETS_ONLY = [cv2.CAP_PROP_FORMAT, -1]

_MAX_LOST = 16
"""Consecutive packets that may give no frame; also the largest displacement between packet order and time order."""

_MAX_PACKETS = 1 << 22
"""Packets of a file: nine hours at 120 frames a second. A file of empty packets has less than ten bytes for each."""

_SEEK_GAIN = 8
"""The least number of frames that a jump must save."""

_OPENCV_LEAD = 16
"""Number of frames before its target at which OpenCV begins to look for a key frame."""

_DEFAULT_FRAME_S = 0.04


class OpenVideo:
    """An open video; `pixels` are those of a frame in the file."""

    def __init__(self, data: Contents, options: ClipOptions, settings: ClipSettings) -> None:
        """Open a video.

        Nothing is decoded, except the first frame of an AVI file, and all frames of a video of several parts.

        Raises:
            InvalidRequest: (often a subclass) It is not a video, or exceeds a limit.
        """
        check_options(options, settings)
        container = container_of(data, "video")
        self._data = data
        self._settings = settings
        self._capture: cv2.VideoCapture | None = None
        self._place = -1  # number of the last frame of the capture
        # The last returned frame, and the numbers for which it stands.
        self._shown: tuple[range, npt.NDArray[np.uint8]] | None = None
        with _typed_errors(len(data)):
            # With packets only, OpenCV does not report the rotation.
            width, height = self._checked_size(self._begun())
            self.pixels = width * height
            nominal_fps = self._read_times(parts_of(data) if container == "mp4" else [], options)
            self._delay_s = self._find_delay() if container == "avi" else 0.0
        if settings.sizes is None:
            size = scaled_size((width, height), settings.patch_size, settings.max_patches)
        else:
            size = settings.sizes.of(width, height)
        self.pieces = sample_video(self._times, self._end_s(nominal_fps), size, options, settings)

    def decode(self, piece: Piece) -> npt.NDArray[np.uint8]:
        """Return the frames of a slice, (num_frames, height, width, 3); cheapest in the order of `pieces`.

        Raises:
            CorruptClip: They cannot be decoded.
        """
        *frames, width, height = piece.place
        with _typed_errors(len(self._data)):
            return np.stack([self._frame(number, (width, height)) for number in frames])

    def close(self) -> None:
        # Not `release`: with a file in memory, OpenCV 5.0.0 crashes in it. An unreferenced capture closes itself.
        self._capture = None

    # ---- packets

    def _checked_size(self, capture: cv2.VideoCapture) -> tuple[int, int]:
        width, height = (int(capture.get(each)) for each in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT))
        if width < 1 or height < 1:
            raise CorruptClip(_FIELD, f"{width} x {height} pixels", "a video has a size")
        if width * height > self._settings.max_frame_pixels:
            limit = f"at most {self._settings.max_frame_pixels} pixels (limits.max_frame_pixels)"
            raise ClipTooLarge(_FIELD, f"{width} x {height} pixels", limit)
        return width, height

    def _read_times(self, parts: list[ShownPart], options: ClipOptions) -> float:
        """Read the times of the shown frames, up to the wanted end; return the frames per second.

        FFmpeg returns packets hidden by an edit list like the others, and OpenCV does not mark them. With one shown
        part, they follow from the edit list. With several, all frames are decoded to learn their times.
        """
        enough_s = self._settings.max_s if options.end_s is None else min(options.end_s, self._settings.max_s)
        if len(parts) > 1:
            capture = _opened(self._data, self._settings, [])
        else:
            capture = _opened(self._data, self._settings, _PACKETS_ONLY, with_edits=not parts)
        times, keys = array("d"), bytearray()
        first_s: float | None = None
        zero_s = inf
        num_behind = 0
        for num, (time_s, is_key, is_shown) in enumerate(_stamps(capture, parts)):
            if num == _MAX_PACKETS:
                raise ClipTooLarge(_FIELD, f"more than {_MAX_PACKETS} frames", f"at most {_MAX_PACKETS} in a file")
            if first_s is None:
                if not is_key:
                    continue
                first_s = time_s
            if is_shown:
                zero_s = min(zero_s, time_s)
                if time_s >= first_s:  # earlier ones depend on frames before the first key frame
                    times.append(time_s)
                    keys.append(is_key)
            num_behind = num_behind + 1 if time_s > enough_s else 0
            # A frame behind the end may be the nearest to a time, and comes among those after it.
            if num_behind > 2 * _MAX_LOST:
                break
        if not times:
            raise EmptyClip(_FIELD, "0 frames", "a video shows frames, and begins with a key frame")
        found = np.frombuffer(times)
        unique = np.unique(found)
        is_key_time = np.isin(unique, found[np.frombuffer(keys, np.bool_)])
        self._times: list[float] = [round(each - zero_s, 6) for each in unique.tolist()] if parts else unique.tolist()
        self._keys: list[int] = np.flatnonzero(is_key_time).tolist()
        return capture.get(cv2.CAP_PROP_FPS)

    def _find_delay(self) -> float:
        """Correct the times of an AVI file's frames; return FFmpeg's delay in seconds.

        An AVI file has the times of decoding, not of showing. With B-frames the decoder gives the first frame after
        some packets, with the time of the last of these, and the last frames without a time.
        """
        capture = self._begun()
        late = self._number_at(_time_s(capture)) if capture.grab() else 0
        self.close()
        times = self._times
        if not 0 < late < min(len(times), _MAX_LOST):
            return 0.0
        gap_s = times[-1] - times[-2]
        ends = [times[-1] + gap_s * (each + 1) for each in range(late)]
        self._times = [round(each - times[late], 6) for each in times[late:] + ends]
        return times[late]

    def _end_s(self, nominal_fps: float) -> float:
        if len(self._times) > 1:
            return round(2 * self._times[-1] - self._times[-2], 6)
        return self._times[0] + (1 / nominal_fps if 1 <= nominal_fps <= 1000 else _DEFAULT_FRAME_S)

    # ---- frames

    def _frame(self, number: int, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
        if self._shown is None or number not in self._shown[0]:
            frame = self._found(number, size)
            self._shown = range(min(number, self._place), max(number, self._place) + 1), frame
        return self._shown[1]

    def _found(self, number: int, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
        capture = self._before(number)
        for _ in _grabbed(capture):
            self._place = self._place_of(capture)
            if self._place >= number:
                if self._place - number > _MAX_LOST:
                    break
                return self._scaled(capture, size)
        if 0 <= self._place < number and number - self._place <= _MAX_LOST and number + _MAX_LOST >= len(self._times):
            return self._found(self._place, size)
        raise CorruptClip(_FIELD, f"frame {number}", "it and some after it cannot be decoded")

    def _before(self, number: int) -> cv2.VideoCapture:
        """Return a capture that gives a frame next, possibly after some earlier ones."""
        capture = self._capture
        if capture is None or self._place >= number:
            capture = self._begun()
        key = bisect_right(self._keys, number - _OPENCV_LEAD) - 1
        if key < 0 or self._keys[key] - self._place <= _SEEK_GAIN:
            return capture
        # OpenCV decodes from the key frame up to the frame before the target by its own count, which is wrong for
        # frames at uneven distances.
        capture.set(cv2.CAP_PROP_POS_MSEC, (self._times[number - 1] + self._delay_s) * 1000)
        if capture.grab():
            self._place = len(self._times)  # the number of a frame without a time is unknown
            self._place = self._place_of(capture)
            if self._place < number:
                return capture
        return self._begun()

    def _place_of(self, capture: cv2.VideoCapture) -> int:
        """Return the number of the frame that was grabbed last."""
        time_s = _time_s(capture)
        if self._delay_s and time_s == 0:  # a frame after the last packet
            return self._place + 1
        return self._number_at(time_s - self._delay_s)

    def _number_at(self, time_s: float) -> int:
        """Return the number of the frame that is shown at a time, or of the next one."""
        return bisect_left(self._times, time_s - TIME_ERROR_S)

    def _begun(self) -> cv2.VideoCapture:
        """Return a capture that gives the first frame next."""
        self.close()
        self._capture = _opened(self._data, self._settings, [])
        self._place = -1
        return self._capture

    def _scaled(self, capture: cv2.VideoCapture, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
        is_given, frame = capture.retrieve()
        if not is_given or frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            raise CorruptClip(_FIELD, f"frame {self._place}", "it has no pixels that can be converted")
        height, width, _ = frame.shape
        # Pillow's integer arithmetic is the same on all machines, and also scales images.
        picture = Image.frombuffer("RGB", (width, height), np.ascontiguousarray(frame), "raw", "BGR", 0, 1)
        sizes = self._settings.sizes
        return np.asarray(picture.resize(size, Image.Resampling(BICUBIC if sizes is None else sizes.resample)))


def _stamps(capture: cv2.VideoCapture, parts: list[ShownPart]) -> Iterator[tuple[float, bool, bool]]:
    """Yield the time of each packet in seconds, whether it is a key frame, and whether it is shown.

    Args:
        capture: Gives packets, for one part with their times without an edit list; for several parts decoded frames.
        parts: The shown parts; empty: everything is shown.
    """
    if len(parts) > 1:
        last_s = -inf
        for _ in _grabbed(capture):
            time_s = _time_s(capture)  # FFmpeg goes back a little where two parts meet
            yield time_s, last_s == -inf, time_s > last_s
            last_s = max(last_s, time_s)
        return
    if not parts:
        for _ in _grabbed(capture):
            yield _time_s(capture), _is_key(capture), True
        return
    units_per_s = round(1 / capture.get(cv2.CAP_PROP_POS_AVI_RATIO))
    shown = parts[0].times(units_per_s)
    first: int | None = None
    for _ in _grabbed(capture):
        time = round(capture.get(cv2.CAP_PROP_POS_MSEC) * units_per_s / 1000)
        first = time if first is None else first
        time += parts[0].first_frame - first
        yield (time - shown.start) / units_per_s, _is_key(capture), time in shown


def _is_key(capture: cv2.VideoCapture) -> bool:
    return capture.get(cv2.CAP_PROP_LRF_HAS_KEY_FRAME) > 0


def _time_s(capture: cv2.VideoCapture) -> float:
    """Return when a packet or a frame is shown. `CAP_PROP_PTS` counts frames at even distances."""
    return round(capture.get(cv2.CAP_PROP_POS_MSEC) / 1000, 6)


def _grabbed(capture: cv2.VideoCapture) -> Iterator[None]:
    """Yield after each grabbed frame until there are none, skipping some damaged ones."""
    num_lost = 0
    while num_lost <= _MAX_LOST:
        if capture.grab():
            num_lost = 0
            yield
        else:
            num_lost += 1


def _opened(data: Contents, settings: ClipSettings, how: list[int], *, with_edits: bool = True) -> cv2.VideoCapture:
    """Open a file; closed with the last reference.

    Args:
        with_edits: Frames have their times by the edit list; otherwise those without it.

    Raises:
        CorruptClip: It cannot be opened.
        ClipTooLarge: It has too many streams.
    """
    options = _FFMPEG_OPTIONS + ("" if with_edits else "|ignore_editlist;1")
    capture = _open_with(data, settings.max_streams, how, options)
    if capture.isOpened():
        return capture
    if _open_with(data, _MANY_STREAMS, how, options).isOpened():
        limit = f"at most {settings.max_streams} streams"
        raise ClipTooLarge(_FIELD, f"more than {settings.max_streams} streams", limit)
    raise CorruptClip(_FIELD, f"{len(data)} bytes", "cannot be opened as a video")


def _open_with(data: Contents, max_streams: int, how: list[int], options: str) -> cv2.VideoCapture:
    os.environ["OPENCV_FFMPEG_CAPTURE_OPTIONS"] = options.format(max_streams)
    stream = cast("cv2.IStreamReader", InPlace(data))  # the stub does not know file objects
    return cv2.VideoCapture(stream, cv2.CAP_FFMPEG, [*_OPEN, *how])


@contextmanager
def _typed_errors(num_bytes: int) -> Iterator[None]:
    try:
        yield
    except (MmcachedError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, cv2.error) and error.code == cv2.Error.StsNoMem:
            raise MemoryError from error
        reason = f"cannot be decoded: {type(error).__name__}: {str(error)[:120]}"
        raise CorruptClip(_FIELD, f"{num_bytes} bytes", reason) from error
