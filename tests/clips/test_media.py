"""What ffmpeg shows and plays of a file is what its slices are made of: containers, codecs, edit lists, tables.

The files in `media` were made by `media/make.py`, with what ffmpeg says of them. `make soak` makes and checks new ones,
where ffmpeg is installed.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mmcached.clips.audio import Sound
from mmcached.clips.settings import ClipSettings
from mmcached.clips.video import OpenVideo
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CorruptClip, EmptyClip
from mmcached.wire.messages.parts import ClipOptions
from tests.clips.boxes import with_edits
from tests.clips.files import sound
from tests.clips.media.make import EDITED, SOUNDS, VIDEOS, expected, expected_video, levels, make

MEDIA = Path(__file__).parent / "media"
ONE_FRAME = ClipSettings.from_config(ServiceConfig(), "video", num_frames=1)
WINDOWS = msgspec.structs.replace(ClipSettings.from_config(ServiceConfig(), "audio"), window_samples=1000)
WHOLE = msgspec.structs.replace(WINDOWS, window_samples=1 << 30)


@cache
def said() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads((MEDIA / "expected.json").read_text())
    return found


def check_video(data: bytes, expected: dict[str, Any], source: random.Random) -> None:
    """Compare frames, their times and what is on them, each frame decoded from another place."""
    clip = OpenVideo(data, ClipOptions("video", num_frames=768), ONE_FRAME)
    assert [piece.start_s for piece in clip.pieces] == pytest.approx(expected["times"], abs=2e-6)
    numbers = source.sample(range(len(clip.pieces)), len(clip.pieces))
    shades = {number: float(clip.decode(clip.pieces[number]).mean()) for number in numbers}
    assert [shades[number] for number in range(len(shades))] == pytest.approx(expected["shades"], abs=2)


def check_sound(data: bytes, expected: dict[str, Any], source: random.Random) -> None:
    """Compare the number of samples and how loud they are; windows have the bits of the whole."""
    clip = Sound(data, ClipOptions("audio"), WHOLE)
    whole = clip.decode(clip.pieces[0])
    assert len(whole) == expected["samples"]
    assert levels(whole) == pytest.approx(expected["levels"], abs=1e-3)
    parts = Sound(data, ClipOptions("audio"), WINDOWS)
    for piece in source.sample(parts.pieces, 8):
        first, num = piece.place
        assert np.array_equal(parts.decode(piece), whole[first : first + num])


@pytest.mark.parametrize("name", [*VIDEOS, *EDITED])
def test_frames_are_those_that_ffmpeg_shows(name: str) -> None:
    check_video((MEDIA / name).read_bytes(), said()[name], random.Random(name))


@pytest.mark.parametrize("name", SOUNDS)
def test_samples_are_those_that_ffmpeg_plays(name: str) -> None:
    check_sound((MEDIA / name).read_bytes(), said()[name], random.Random(name))


def test_a_video_that_is_turned_is_upright() -> None:
    lying, upright = (
        OpenVideo((MEDIA / name).read_bytes(), ClipOptions("video", num_frames=1), ONE_FRAME).pieces[0].place[1:]
        for name in ("b_frames.mp4", "turned.mp4")
    )
    assert upright == lying[::-1]


@pytest.mark.parametrize("edits", [[(100, -1)], [(0, 1024)], [(100, 10**6)]], ids=["a delay", "0 s", "behind the end"])
def test_a_video_of_which_nothing_is_shown_is_empty(edits: list[tuple[int, int]]) -> None:
    data = with_edits((MEDIA / "b_frames.mp4").read_bytes(), edits)
    with pytest.raises(EmptyClip):
        OpenVideo(data, ClipOptions("video", num_frames=1), ONE_FRAME)


def test_a_chained_ogg_file_is_refused() -> None:
    first, second = (sound(0.5, format="OGG", seed=seed) for seed in (0, 1))
    with pytest.raises(CorruptClip, match=f"another sound begins at byte {len(first)}"):
        Sound(first + second, ClipOptions("audio"), WHOLE)


@pytest.mark.soak
@pytest.mark.skipif(not (shutil.which("ffmpeg") and shutil.which("ffprobe")), reason="ffmpeg is not on this machine")
def test_new_files_are_as_ffmpeg_shows_and_plays_them(tmp_path: Path, draw_seeds: Callable[[int], list[int]]) -> None:
    make(tmp_path)
    found = expected(tmp_path)
    for name in [*VIDEOS, *EDITED]:
        check_video((tmp_path / name).read_bytes(), found[name], random.Random(name))
    for name in SOUNDS:
        check_sound((tmp_path / name).read_bytes(), found[name], random.Random(name))
    (seed,) = draw_seeds(1)
    source = random.Random(seed)
    edited = tmp_path / "edited.mp4"
    for _ in range(200):
        name = source.choice(["b_frames.mp4", "open_gop.mp4", "one_gop.mp4", "uneven.mp4", "hevc.mp4"])
        edits = [(source.randint(50, 2500), 1024 + source.randint(0, 45 * 512))]
        if source.random() < 0.3:
            edits = [(source.randint(1, 3000), -1), *edits]
        edited.write_bytes(with_edits((tmp_path / name).read_bytes(), edits))
        check_video(edited.read_bytes(), expected_video(edited), source)
