"""Makes films and sounds of which no two are alike, as files that a camera or a recorder could have written.

film     MPEG-4 in MP4: a camera that moves over a picture, 5 to 7 Mbit/s at 720p; a longer one begins with the frames,
         bit for bit, of a shorter one of the same seed
sound    FLAC, two channels of 44.1 kHz: tones that rise, and noise

A tower for sounds is a checkpoint as large as whisper-tiny, with weights at random.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import numpy as np

from scripts.bench.harness import require_extras

RATE = 24
"""Frames a second."""
SAMPLES_PER_S = 44_100


def film(seconds: float, size: tuple[int, int], seed: int) -> bytes:
    """Return the file of a film.

    Args:
        size: width and height, pixels.
    """
    import cv2

    width, height = size
    noise = np.random.default_rng(seed).integers(0, 256, (height // 8, width // 4, 3), dtype=np.uint8)
    scene = cv2.resize(noise, (2 * width, height), interpolation=cv2.INTER_CUBIC)
    with tempfile.TemporaryDirectory(prefix="mmc-film-") as folder:
        path = Path(folder) / "film.mp4"
        writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), RATE, size)
        for number in range(round(RATE * seconds)):
            left = number % width
            writer.write(np.ascontiguousarray(scene[:, left : left + width]))
        writer.release()
        return path.read_bytes()


def sound(seconds: float, seed: int) -> bytes:
    """Return the file of a sound."""
    import soundfile

    random = np.random.default_rng(seed)
    times = np.arange(round(seconds * SAMPLES_PER_S)) / SAMPLES_PER_S
    tones = [
        np.sin(2 * np.pi * times * (start + times * rise)) for start, rise in random.uniform((80, 0), (900, 40), (4, 2))
    ]
    noise = random.normal(scale=0.05, size=(len(times), 2))
    buffer = io.BytesIO()
    soundfile.write(buffer, 0.2 * np.sum(tones, axis=0)[:, None] + noise, SAMPLES_PER_S, format="FLAC")
    return buffer.getvalue()


def save_whisper(folder: Path) -> None:
    """Write a checkpoint; the defaults of Transformers are the sizes of whisper-tiny.

    Raises:
        Unavailable: Transformers is not installed.
    """
    require_extras(transformers="hf", safetensors="hf")
    import transformers

    transformers.WhisperModel(transformers.WhisperConfig(decoder_layers=1)).save_pretrained(folder)
    transformers.WhisperFeatureExtractor().save_pretrained(folder)
