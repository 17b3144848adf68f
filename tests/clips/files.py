"""Small videos and sounds for the tests, as bytes; the same arguments always give the same file."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import soundfile

_SUFFIXES = {"mp4v": ".mp4", "MJPG": ".avi", "FFV1": ".mkv", "VP90": ".webm"}
"""The container of a codec, if no other one is wanted."""

RATE = 16_000
"""Samples of a sound in a second, as encoders take them."""


def frame(index: int, size: tuple[int, int] = (64, 48), seed: int = 0) -> npt.NDArray[np.uint8]:
    """Return a picture, (height, width, 3), blue first: a block that wanders over a ground whose colours change."""
    width, height = size
    picture = np.empty((height, width, 3), np.uint8)
    picture[:] = [(40 + 37 * index + 71 * seed) % 256, (200 - 29 * index) % 256, (90 + 53 * index * (seed + 1)) % 256]
    left, top = (5 * index + 7 * seed) % max(1, width - 12), (3 * index + 11 * seed) % max(1, height - 12)
    picture[top : top + 12, left : left + 12] = 255
    return picture


def video(
    num_frames: int,
    *,
    fps: float = 10,
    size: tuple[int, int] = (64, 48),
    seed: int = 0,
    codec: str = "mp4v",
    suffix: str = "",
) -> bytes:
    """Return a video of `frame(0), frame(1), …`.

    One that is longer, and equal otherwise, has the same first frames: encoders look back, never ahead.

    Args:
        size: width and height, pixels.
        codec: of "MJPG" each frame is a key frame; "FFV1" loses nothing.
        suffix: of the container, ".mp4", ".avi", ".mkv" or ".webm"; "": the usual one for the codec.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"clip{suffix or _SUFFIXES[codec]}"
        writer = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*codec), fps, size)
        assert writer.isOpened(), f"OpenCV cannot write {codec} as {path.suffix}"
        for index in range(num_frames):
            writer.write(frame(index, size, seed))
        writer.release()
        return path.read_bytes()


def video_and_longer(num_frames: int, num_more: int, *, fps: float = 10, seed: int = 0) -> tuple[bytes, bytes]:
    """Return an MP4 file, and another one that begins with the same frames, bit for bit, and goes on."""
    short, long = (
        video(num, fps=fps, seed=seed, codec="MJPG", suffix=".mp4") for num in (num_frames, num_frames + num_more)
    )
    return short, long


def samples(seconds: float, *, rate: int = RATE, channels: int = 1, seed: int = 0) -> npt.NDArray[np.float32]:
    """Return a tone that rises, another one for each channel, with a little noise: float32 (n, channels)."""
    times = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(seed).normal(0, 0.02, (len(times), channels))
    pitches = 220 + 110 * seed + 55 * np.arange(channels) + 40 * times[:, None]
    return (0.5 * np.sin(2 * np.pi * pitches * times[:, None]) + noise).astype(np.float32)


def sound(
    seconds: float,
    *,
    rate: int = RATE,
    channels: int = 1,
    seed: int = 0,
    format: str = "WAV",  # noqa: A002 # as soundfile calls it
) -> bytes:
    """Return a sound of `samples(…)`; one that is longer, and equal otherwise, begins with the same samples.

    Args:
        format: "WAV" or "FLAC" of 16 bits, or "OGG", which loses a little.
    """
    return encoded(samples(seconds, rate=rate, channels=channels, seed=seed), rate, format)


def encoded(
    values: npt.NDArray[np.float32],
    rate: int = RATE,
    format: str = "WAV",  # noqa: A002
    subtype: str | None = None,
) -> bytes:
    """Return a sound of these samples, (n, channels) or (n,)."""
    buffer = io.BytesIO()
    soundfile.write(buffer, values, rate, format=format, subtype=subtype)
    return buffer.getvalue()
