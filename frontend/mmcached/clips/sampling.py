"""Chooses the slices of a clip: the sampled frames of a video, the windows of a sound.

    fps         the nearest frame to each of the times 0, 1/fps, 2/fps, … of the file; of two the earlier one. A slice
                is the pair of times (2j, 2j + 1), or as many as a tower takes together; times before `start_s` and
                from `end_s` on are left out.
    num_frames  this number of the window's frames, at equal distances by number, with the first and the last one; all
                of them if it has no more. A slice is two of these in order.
    a sound     consecutive windows of one length since the file's beginning, cut off at `start_s` and `end_s`

So two clips of one file share slices, whatever they begin with. Half a pair, at the window's edge or at the end, has
its own frame twice; where more are missing, the last one is repeated.

Times are those of the container, so frames at uneven distances are taken where they are shown. The content of a slice
depends only on the file and on `Piece.place`. Works with numbers, not with files.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from math import ceil
from typing import Annotated

import msgspec

from mmcached.clips.settings import ClipSettings
from mmcached.wire.errors import ClipTooLarge, EmptyClip, InvalidRequest
from mmcached.wire.messages.parts import ClipOptions

RATE = 16_000
"""Samples of a sound in a second, as encoders take them."""

MAX_FRAMES = 1024
"""The most frames of one slice."""

TIME_ERROR_S = 1.5e-6
"""The largest joint error of two frame times, each in whole microseconds, with some margin for floating point."""

_EPSILON = 1e-9
"""Rounding error of k / fps * fps."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Piece(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The place of a slice in its file.

    Attributes:
        place: Of a video the numbers of its frames, then width and height in pixels after scaling; of a sound the first
            sample and the number of samples, at 16,000 a second.
    """

    place: Annotated[tuple[Count, ...], msgspec.Meta(min_length=2, max_length=MAX_FRAMES + 2)]
    start_s: Seconds
    end_s: Seconds


def check_options(options: ClipOptions, settings: ClipSettings) -> None:
    """Refuse invalid options.

    Raises:
        InvalidRequest: The options contradict each other.
        ClipTooLarge: More frames than the limit.
    """
    field = options.modality
    if options.end_s is not None and options.end_s <= options.start_s:
        limit = f"must be more than start_s = {options.start_s}"
        raise InvalidRequest(field, f"end_s = {options.end_s}", limit)
    given = [name for name in ("fps", "num_frames") if getattr(options, name) is not None]
    if len(given) != (options.modality == "video"):
        limit = "a video has one of fps and num_frames, a sound none"
        raise InvalidRequest(field, " and ".join(given) or "neither fps nor num_frames", limit)
    if options.num_frames is not None:
        _check_frames(options.num_frames, settings)


def last_second(end_of_file_s: float, options: ClipOptions, settings: ClipSettings) -> float:
    """Return the end of the wanted part of a file, in seconds.

    Raises:
        InvalidRequest: It would begin behind the end of the file.
        ClipTooLarge: It ends beyond the limit.
    """
    end_s = end_of_file_s if options.end_s is None else min(options.end_s, end_of_file_s)
    if options.start_s >= end_of_file_s:
        limit = f"the file ends at {end_of_file_s:.3f} s"
        raise InvalidRequest(options.modality, f"start_s = {options.start_s}", limit)
    if end_s > settings.max_s:
        limit = f"at most {settings.max_s} s (limits.max_clip_s)"
        raise ClipTooLarge(options.modality, f"ends at {end_s:.3f} s", limit)
    return end_s


def sample_video(
    times: Sequence[float], end_of_file_s: float, size: tuple[int, int], options: ClipOptions, settings: ClipSettings
) -> list[Piece]:
    """Return the slices of a video.

    Args:
        times: Times of its frames in seconds of the file, in order.
        size: Width and height of its scaled frames in pixels.

    Raises:
        InvalidRequest: (often a subclass) There are no slices, or too many.
    """
    if not times:
        raise EmptyClip("video", "0 frames", "a video has frames")
    end_s = last_second(end_of_file_s, options, settings)
    if options.fps is not None:
        return list(_by_fps(times, end_s, size, options, settings))
    return list(_by_number(times, end_s, size, options, settings.num_frames))


def sample_audio(num_samples: int, options: ClipOptions, settings: ClipSettings) -> list[Piece]:
    """Return the slices of a sound.

    Args:
        num_samples: Samples of the whole file, at 16,000 a second.

    Raises:
        InvalidRequest: (often a subclass) There are no slices, or too many.
    """
    if not num_samples:
        raise EmptyClip("audio", "0 samples", "a sound has samples")
    end = round(last_second(num_samples / RATE, options, settings) * RATE)
    start = round(options.start_s * RATE)
    if start >= end:
        raise InvalidRequest("audio", f"{options.start_s} to {options.end_s} s", "there is no sample in it")
    length = settings.window_samples
    firsts = [start, *range((start // length + 1) * length, end, length)]
    return [
        Piece((first, behind - first), first / RATE, behind / RATE)
        for first, behind in zip(firsts, [*firsts[1:], end], strict=True)
    ]


def _by_fps(
    times: Sequence[float], end_s: float, size: tuple[int, int], options: ClipOptions, settings: ClipSettings
) -> Iterator[Piece]:
    fps = options.fps
    assert fps is not None
    first, behind = (ceil(second * fps - _EPSILON) for second in (options.start_s, end_s))
    if first >= behind:
        limit = f"no time k / {fps} lies in it"
        raise InvalidRequest("video", f"{options.start_s} to {end_s:.3f} s", limit)
    _check_frames(behind - first, settings)
    num = settings.num_frames
    for low in range(first // num * num, behind, num):
        taken = [k for k in range(low, low + num) if first <= k < behind]
        frames = _filled([_nearest(times, k / fps) for k in taken], num)
        yield Piece((*frames, *size), taken[0] / fps, max(taken[0] / fps, min(end_s, (low + num) / fps)))


def _by_number(
    times: Sequence[float], end_s: float, size: tuple[int, int], options: ClipOptions, num_of_slice: int
) -> Iterator[Piece]:
    assert options.num_frames is not None
    first, behind = bisect_left(times, options.start_s), bisect_left(times, end_s)
    if first >= behind:  # between two frames: take the shown one
        first, behind = max(0, first - 1), max(1, first)
    last, num = behind - 1 - first, min(options.num_frames, behind - first)
    frames = [first + step * last // max(1, num - 1) for step in range(num)]
    starts = [max(options.start_s, times[frame]) for frame in frames[::num_of_slice]]
    for number, start_s in enumerate(starts):
        taken = _filled(frames[num_of_slice * number :][:num_of_slice], num_of_slice)
        yield Piece((*taken, *size), start_s, max(start_s, [*starts, end_s][number + 1]))


def _filled(frames: list[int], num: int) -> list[int]:
    return frames + frames[-1:] * (num - len(frames))


def _nearest(times: Sequence[float], time_s: float) -> int:
    """Return the nearest frame to a time; of two equally near ones, the earlier."""
    behind = bisect_left(times, time_s)
    if behind == 0:
        return 0
    if behind == len(times) or time_s - times[behind - 1] <= times[behind] - time_s + TIME_ERROR_S:
        return behind - 1
    return behind


def _check_frames(num_frames: int, settings: ClipSettings) -> None:
    if num_frames > settings.max_frames:
        limit = f"at most {settings.max_frames} frames (limits.max_clip_frames)"
        raise ClipTooLarge("video", f"{num_frames} frames", limit)
