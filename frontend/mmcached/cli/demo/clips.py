"""Makes the demo's small film and sound: the camera moves over a photograph, and a tone rises.

Two overlapping windows of the film are requested, so that the second one finds half of its slices cached. Each clip is
made only where its decoder is installed.
"""

from __future__ import annotations

import io
import tempfile
import wave
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from mmcached.cli.demo.photos import Photo
from mmcached.cli.demo.workload import Files, Turn
from mmcached.client import Audio, Video
from mmcached.clips.versions import EXTRAS, decoder_of
from mmcached.wire.vocabulary import Modality

FILM_S, FILM_RATE, FILM_SIZE = 6, 8, (160, 120)
WINDOW_S, SHIFT_S = 4.0, 2.0
SOUND_S, SOUND_RATE = 5, 22_050
MODALITIES: Sequence[Modality] = ("video", "audio")


def missing_extras(known: Collection[Modality]) -> list[str]:
    return [EXTRAS[modality] for modality in MODALITIES if modality in known and not decoder_of(modality)]


def clip_turns(photo: Photo, known: Collection[Modality]) -> list[Turn]:
    """Return the turns of a user with a film, the same film a little later, and a sound: of those that the model knows
    and a decoder is installed for.
    """
    turns = []
    if "video" in known and decoder_of("video"):
        film = _film(photo)
        first, then = (Video(film, start_s=start_s, end_s=start_s + WINDOW_S) for start_s in (0.0, SHIFT_S))
        turns.append(Turn("A user with a film: What happens in it?", Files(videos=[first])))
        turns.append(Turn("A user with a film: And a little later?", Files(videos=[then])))
    if "audio" in known and decoder_of("audio"):
        turns.append(Turn("A user with a sound: What do you hear?", Files(audios=[Audio(_sound())])))
    return turns


def _film(photo: Photo) -> bytes:
    import cv2

    width, height = FILM_SIZE
    num_frames = FILM_S * FILM_RATE
    with Image.open(io.BytesIO(photo.data)) as opened:
        scene = np.asarray(opened.convert("RGB").resize((width + 4 * num_frames, height)))[:, :, ::-1]
    with tempfile.TemporaryDirectory(prefix="mmc-demo-") as folder:
        path = Path(folder) / "film.mp4"
        writer = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*"mp4v"), FILM_RATE, FILM_SIZE)
        for left in range(0, 4 * num_frames, 4):
            writer.write(np.ascontiguousarray(scene[:, left : left + width]))
        writer.release()
        return path.read_bytes()


def _sound() -> bytes:
    times = np.arange(SOUND_S * SOUND_RATE) / SOUND_RATE
    tone = (8000 * np.sin(2 * np.pi * times * (220 + 60 * times))).astype("<i2")
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SOUND_RATE)
        file.writeframes(tone.tobytes())
    return buffer.getvalue()
