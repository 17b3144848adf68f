"""Holds what a caller wants of videos and sounds, and what the encoder says of their slices.

    Video, Audio ──checked, defaults filled in──> ClipOptions and a file          outputs of slices ──> Clip

All that is wanted travels, also what the caller has not said: another default never finds what was made with a former
one. Knows nothing of messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, count, islice
from typing import Any

import numpy as np

from mmcached.client.arguments import check_sequence, checked_int, checked_real
from mmcached.client.media_files import ImageLike, read_file
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.messages.frontend import MAX_CLIPS
from mmcached.wire.messages.parts import MAX_CLIP_FRAMES, MAX_FPS, MAX_SECONDS, ClipOptions

DEFAULT_FPS = 2.0


@dataclass(frozen=True, slots=True)
class Video:
    """A video, and what is wanted of it.

    Frames of `fps` are those at k / fps seconds since the beginning of the file, for all whole k: a grid of times that
    is the file's own. So two windows of one file have the frames in common where they overlap, whatever they begin
    with, and those are decoded and encoded once. Frames of `num_frames` move with the window.

    Attributes:
        data: an encoded file, as of an image: bytes, or a `Path`.
        fps: frames for each second, above 0 and at most 1000; None: 2.0, if `num_frames` is None.
        num_frames: 1 to 65,536 frames at equal distances instead.
        start_s: seconds from the beginning of the file to that of the part which is wanted.
        end_s: the same of its end, which does not belong to it; None: the end of the file.
    """

    data: ImageLike = field(repr=False)
    fps: float | None = None
    num_frames: int | None = None
    start_s: float = 0.0
    end_s: float | None = None


@dataclass(frozen=True, slots=True)
class Audio:
    """A sound, and the part of it that is wanted.

    Its slices are windows of one length, on a grid of times that begins with the file: two parts of one file have those
    in common where they overlap.

    Attributes:
        data, start_s, end_s: as of a `Video`.
    """

    data: ImageLike = field(repr=False)
    start_s: float = 0.0
    end_s: float | None = None


VideoLike = ImageLike | Video
AudioLike = ImageLike | Audio
"""A file alone is taken as a whole: a video with 2 frames for each second."""


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """What the encoder says of a video or a sound, slice by slice: of each two frames, or of each window.

    Attributes:
        outputs: as of an image: a tensor, or a dict of tensors by name if the encoder has several outputs.
        times: the seconds of the file that each slice is made of, `(start_s, end_s)`.
    """

    outputs: list[Any]
    times: list[tuple[float, float]]

    def __len__(self) -> int:
        return len(self.outputs)

    def joined(self) -> Any:
        """Return the outputs of all slices as one tensor, owned: `(rows of all slices, …)`, of their library.

        Raises:
            InvalidRequest: the encoder has several outputs; join those that have a row for each embedding.
        """
        first = self.outputs[0]
        if isinstance(first, dict):
            raise InvalidRequest(
                "outputs", ", ".join(first)[:80], "one output of each slice; these can be joined by name"
            )
        if isinstance(first, np.ndarray):
            return np.concatenate(self.outputs)
        import torch

        return torch.cat(self.outputs)


def checked_clips(videos: Sequence[VideoLike], audios: Sequence[AudioLike]) -> list[ClipOptions]:
    """Return what is wanted of each clip, videos first, as it may travel."""
    check_sequence("videos", videos)
    check_sequence("audios", audios)
    if not (videos or audios):
        return []
    if (number := len(videos) + len(audios)) > MAX_CLIPS:
        raise InvalidRequest("videos", number, f"at most {MAX_CLIPS} videos and sounds together")
    of_videos = [_of_video(video, f"videos[{index}]") for index, video in enumerate(videos)]
    return of_videos + [_of_audio(audio, f"audios[{index}]") for index, audio in enumerate(audios)]


def read_clips(videos: Sequence[VideoLike], audios: Sequence[AudioLike]) -> list[bytes]:
    """Return the file of each clip, videos first; the same bytes for those that were given the same.

    Raises:
        InvalidRequest: neither bytes nor a path, or a path that cannot be read; names its index.
    """
    files = [each.data if isinstance(each, Video) else each for each in videos]
    files += [each.data if isinstance(each, Audio) else each for each in audios]
    fields = chain((f"videos[{index}]" for index in range(len(videos))), (f"audios[{index}]" for index in count()))
    return list(map(read_file, files, fields))


def together(outputs: Sequence[Any], clips: Sequence[Sequence[tuple[float, float]]]) -> list[Any]:
    """Return the outputs of images as they are, and those of each clip together; None of one that lacks any.

    Args:
        outputs: of images, then of the slices of each clip.
        clips: the times of each one's slices; none of one that lacks all.
    """
    if not clips:
        return list(outputs)
    left = iter(outputs)
    of_images = list(islice(left, len(outputs) - sum(map(len, clips))))
    return of_images + [_clip_or_none(list(islice(left, len(times))), times) for times in clips]


def _clip_or_none(outputs: list[Any], times: Sequence[tuple[float, float]]) -> Clip | None:
    is_whole = bool(times) and all(output is not None for output in outputs)
    return Clip(outputs, list(times)) if is_whole else None


def _of_video(video: VideoLike, field: str) -> ClipOptions:
    if not isinstance(video, Video):
        return ClipOptions("video", fps=DEFAULT_FPS)
    start_s, end_s = _window(video, field)
    fps, num_frames = video.fps, video.num_frames
    if num_frames is not None:
        num_frames = checked_int(f"{field}.num_frames", num_frames, 1, MAX_CLIP_FRAMES)
        if fps is not None:
            raise InvalidRequest(f"{field}.num_frames", num_frames, "None where `fps` is given: one of the two")
    else:
        limit = f"a number above 0 and at most {MAX_FPS}"
        fps = checked_real(f"{field}.fps", DEFAULT_FPS if fps is None else fps, lambda fps: 0 < fps <= MAX_FPS, limit)
    return ClipOptions("video", start_s, end_s, fps, num_frames)


def _of_audio(audio: AudioLike, field: str) -> ClipOptions:
    return ClipOptions("audio", *_window(audio, field)) if isinstance(audio, Audio) else ClipOptions("audio")


def _window(clip: Video | Audio, field: str) -> tuple[float, float | None]:
    limit = f"a number of seconds from 0 to {MAX_SECONDS}"
    start_s = checked_real(f"{field}.start_s", clip.start_s, lambda start_s: 0 <= start_s <= MAX_SECONDS, limit)
    start_s += 0.0  # -0.0 would be another key
    if clip.end_s is None:
        return start_s, None
    limit = f"a number of seconds above `start_s`, {start_s}, and at most {MAX_SECONDS}; or None"
    return start_s, checked_real(f"{field}.end_s", clip.end_s, lambda end_s: start_s < end_s <= MAX_SECONDS, limit)
