"""Options of videos and sounds, and the encoder outputs of their slices.

    Video, Audio ──checked, defaults filled in──> ClipOptions and a file          outputs of slices ──> Clip

All options are sent, also defaults: after a default has changed, results of the former default are never found. Does
not know messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, count, islice
from typing import Any

import numpy as np

from mmcached.client.arguments import check_sequence, checked_int, checked_real
from mmcached.client.media_files import ImageLike, read_required
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.messages.frontend import MAX_CLIPS
from mmcached.wire.messages.parts import MAX_CLIP_FRAMES, MAX_FPS, MAX_SECONDS, ClipOptions

DEFAULT_FPS = 2.0


@dataclass(frozen=True, slots=True)
class Video:
    """A video file with sampling options.

    With `fps` the frames lie at k / fps seconds since the beginning of the file, for all whole k: a time grid of the
    file. So two windows of one file share the frames where they overlap, wherever they begin, and shared frames are
    decoded and encoded once. With `num_frames` the frames move with the window.

    Attributes:
        data: Encoded file, like an image: bytes, or a `Path`; None for a file that is known by name.
        fps: Frames per second, above 0 and at most 1000; None: 2.0, if `num_frames` is None.
        num_frames: Instead, 1 to 65,536 frames at equal distances.
        start_s: Begin of the window, in seconds from the beginning of the file.
        end_s: End of the window, exclusive; None: the end of the file.
    """

    data: ImageLike | None = field(repr=False)
    fps: float | None = None
    num_frames: int | None = None
    start_s: float = 0.0
    end_s: float | None = None


@dataclass(frozen=True, slots=True)
class Audio:
    """A sound file with a window.

    Its slices are windows of one length, on a time grid that begins with the file: two parts of one file share the
    slices where they overlap.

    Attributes:
        data, start_s, end_s: As for a `Video`.
    """

    data: ImageLike | None = field(repr=False)
    start_s: float = 0.0
    end_s: float | None = None


VideoLike = ImageLike | Video
AudioLike = ImageLike | Audio
"""A file without options is used whole: a video with 2 frames per second."""


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """Encoder outputs of a video or a sound, one per slice: each two frames, or each window.

    Attributes:
        outputs: A tensor per slice, or a dict of tensors by name if the encoder has several outputs.
        times: `(start_s, end_s)` of each slice, in seconds of the file.
    """

    outputs: list[Any]
    times: list[tuple[float, float]]

    def __len__(self) -> int:
        return len(self.outputs)

    def joined(self) -> Any:
        """Return the outputs of all slices as one owned tensor: `(rows of all slices, …)`, of the same library.

        Raises:
            InvalidRequest: The encoder has several outputs; join those that have a row for each embedding.
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


def checked_clips(videos: Sequence[VideoLike | None], audios: Sequence[AudioLike | None]) -> list[ClipOptions]:
    check_sequence("videos", videos)
    check_sequence("audios", audios)
    if not (videos or audios):
        return []
    if (number := len(videos) + len(audios)) > MAX_CLIPS:
        raise InvalidRequest("videos", number, f"at most {MAX_CLIPS} videos and sounds together")
    of_videos = [_of_video(video, f"videos[{index}]") for index, video in enumerate(videos)]
    return of_videos + [_of_audio(audio, f"audios[{index}]") for index, audio in enumerate(audios)]


def read_clips(videos: Sequence[VideoLike | None], audios: Sequence[AudioLike | None]) -> list[bytes]:
    """Return the file of each clip, videos first; clips that share a bytes object share the result.

    Raises:
        InvalidRequest: A file is neither bytes nor a path, or cannot be read; names its index.
    """
    return [read_required(file, field) for file, field in files_of_clips(videos, audios)]


def files_of_clips(
    videos: Sequence[VideoLike | None], audios: Sequence[AudioLike | None]
) -> list[tuple[ImageLike | None, str]]:
    """Return the file of each clip, not read, and its name in errors; videos first."""
    files = [(each.data if isinstance(each, Video) else each) for each in videos]
    files += [(each.data if isinstance(each, Audio) else each) for each in audios]
    fields = chain((f"videos[{index}]" for index in range(len(videos))), (f"audios[{index}]" for index in count()))
    return list(zip(files, fields, strict=False))


def together(outputs: Sequence[Any], clips: Sequence[Sequence[tuple[float, float]]]) -> list[Any]:
    """Group the outputs of each clip; None for a clip that lacks an output. Outputs of images stay as they are.

    Args:
        outputs: Outputs of images, then of the slices of each clip.
        clips: Times of each clip's slices; empty for a clip that lacks all.
    """
    if not clips:
        return list(outputs)
    left = iter(outputs)
    of_images = list(islice(left, len(outputs) - sum(map(len, clips))))
    return of_images + [_clip_or_none(list(islice(left, len(times))), times) for times in clips]


def _clip_or_none(outputs: list[Any], times: Sequence[tuple[float, float]]) -> Clip | None:
    is_whole = bool(times) and all(output is not None for output in outputs)
    return Clip(outputs, list(times)) if is_whole else None


def _of_video(video: VideoLike | None, field: str) -> ClipOptions:
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


def _of_audio(audio: AudioLike | None, field: str) -> ClipOptions:
    return ClipOptions("audio", *_window(audio, field)) if isinstance(audio, Audio) else ClipOptions("audio")


def _window(clip: Video | Audio, field: str) -> tuple[float, float | None]:
    limit = f"a number of seconds from 0 to {MAX_SECONDS}"
    start_s = checked_real(f"{field}.start_s", clip.start_s, lambda start_s: 0 <= start_s <= MAX_SECONDS, limit)
    start_s += 0.0  # turns -0.0, which would make another key, into 0.0
    if clip.end_s is None:
        return start_s, None
    limit = f"a number of seconds above `start_s`, {start_s}, and at most {MAX_SECONDS}; or None"
    return start_s, checked_real(f"{field}.end_s", clip.end_s, lambda end_s: start_s < end_s <= MAX_SECONDS, limit)
