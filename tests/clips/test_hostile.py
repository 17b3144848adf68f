"""Files that lie, end too early or ask for too much: each gets slices or a typed error, and the next one its slices."""

from __future__ import annotations

import os
import struct
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcached.clips import video as video_module
from mmcached.clips.settings import ClipSettings
from mmcached.clips.video import OpenVideo
from mmcached.gateway.processing.clip_decoders import ClipDecoderPool
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ClipTooLarge, CorruptClip, EmptyClip, InvalidRequest, MmcachedError
from mmcached.wire.messages.parts import ClipOptions
from tests.clips.boxes import avi, h264, jpeg, matroska
from tests.clips.files import encoded, samples, sound, video
from tests.clips.hostile import box_of, claiming, patched, referring_to, silence
from tests.clips.pools import decoded, outcome, pids, pool_of, warm_up
from tests.house.drawing import examples

SETTINGS = ClipSettings.from_config(ServiceConfig(), "video")
MEDIA = Path(__file__).parent / "media"
BILLION = struct.pack(">I", 10**9)


@pytest.fixture(autouse=True)
def _the_same_decoders_go_on(living: ClipDecoderPool) -> Any:
    before = pids()
    yield
    assert pids() == before, "a decoder has died of a file"


def assert_refused(made: object, error: type[MmcachedError], says: str) -> None:
    assert type(made) is error, made
    assert says in str(made)


@cache
def mp4() -> bytes:
    return video(30)


def with_samples(num: bytes, size: bytes) -> bytes:
    """Return an MP4 file whose tables say that it has so many frames of one size, one after the other."""
    data = patched(mp4(), box_of(mp4(), b"stts") + 8, num)
    data = patched(data, box_of(data, b"stsz") + 4, size + num)
    return patched(data, box_of(data, b"stsc") + 8, struct.pack(">I", 1) + num)


def with_shaken_nan(value: float) -> bytes:
    values = samples(0.5)
    values[100] = value
    return encoded(values, subtype="FLOAT")


# ---- videos


@pytest.mark.parametrize("kept", [0.05, 0.5, 0.9])
@pytest.mark.parametrize(("codec", "suffix"), [("mp4v", ".mp4"), ("mp4v", ".mkv"), ("MJPG", ".avi"), ("VP90", ".webm")])
def test_a_truncated_video_ends_before_or_cannot_be_opened(
    living: ClipDecoderPool, codec: str, suffix: str, kept: float
) -> None:
    data = video(30, codec=codec, suffix=suffix)
    made = outcome(living, data[: int(kept * len(data))])
    if suffix == ".mp4" or kept < 0.1:  # what it begins with is at its end, or has gone
        assert isinstance(made, CorruptClip | EmptyClip)
    else:
        assert isinstance(made, list)
        assert made[-1].end_s < 3.0


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(avi([jpeg(64, 48)] * 5, (64, 48), claimed_frames=10**9), id="AVI, a billion frames"),
        pytest.param(patched(video(5), box_of(video(5), b"stts") + 8, BILLION), id="MP4, times of a billion"),
        pytest.param(patched(video(5), box_of(video(5), b"mdhd") + 16, b"\x7f\xff\xff\xff"), id="MP4, for years"),
    ],
)
def test_a_claim_of_more_frames_than_come_is_not_believed(living: ClipDecoderPool, data: bytes) -> None:
    assert [each.end_s for each in decoded(living, data, fps=2.0)] == [0.5]
    assert [each.end_s for each in decoded(living, data, num_frames=4)][-1] == 0.5


def test_frames_outside_the_file_end_no_decoder(living: ClipDecoderPool) -> None:
    """FFmpeg asks for a place before the file's beginning."""
    data = patched(mp4(), box_of(mp4(), b"stco") + 8, b"\xff" * 4)
    assert_refused(outcome(living, data), CorruptClip, "")


@pytest.mark.parametrize("num", [10**6, 10**9])
def test_tables_of_frames_that_are_not_there_are_refused(living: ClipDecoderPool, num: int) -> None:
    packed = struct.pack(">I", num)
    for data in (with_samples(packed, b"\0\0\0\1"), patched(mp4(), box_of(mp4(), b"stsz") + 8, packed)):
        assert isinstance(outcome(living, data), CorruptClip | EmptyClip)


def test_frames_that_are_shown_for_years_are_refused(living: ClipDecoderPool) -> None:
    data = avi([jpeg(64, 48)] * 5, (64, 48), fps=1, scale=1000)
    assert_refused(outcome(living, data), ClipTooLarge, "limits.max_clip_s")
    assert [each.end_s for each in decoded(living, data, end_s=3000.0)] == [2000.0, 3000.0], "but for those before"


def test_the_smallest_and_the_largest_frames(living: ClipDecoderPool) -> None:
    (made,) = decoded(living, avi([jpeg(1, 1)] * 2, (1, 1)))
    assert made.arrays["frames"].shape == (2, 32, 32, 3)
    wide = avi([jpeg(16_384, 600)], (16_384, 600))
    assert_refused(outcome(living, wide), ClipTooLarge, "16384 x 600 pixels")
    claimed = bytearray(jpeg(64, 48))
    place = claimed.index(b"\xff\xc0") + 5
    claimed[place : place + 4] = struct.pack(">HH", 16_384, 16_384)
    for data in (avi([bytes(claimed)] * 2, (64, 48)), avi([bytes(claimed)] * 2, (16_384, 16_384))):
        assert_refused(outcome(living, data), CorruptClip, "")


def test_frames_that_change_their_size_are_scaled_to_the_first_one_s(living: ClipDecoderPool) -> None:
    """Without it FFmpeg's converter would read behind the end of a smaller one."""
    data = avi([jpeg(64, 48, 10), jpeg(16, 16, 90), jpeg(640, 480, 170), jpeg(64, 48, 250)], (64, 48))
    made = np.concatenate([each.arrays["frames"] for each in decoded(living, data)])
    assert made.shape == (4, 64, 64, 3)
    assert [round(float(frame.mean()), -1) for frame in made] == [10, 90, 170, 250]


def test_a_video_begins_with_its_first_key_frame(living: ClipDecoderPool) -> None:
    packets, private = h264(range(30, 90, 2))  # with key frames at 0, 12 and 24
    for begin, end in ((0, 30), (5, 30), (1, 12)):
        data = matroska(packets[begin:end], (64, 48), "V_MPEG4/ISO/AVC", private)
        made = outcome(living, data, fps=25.0)
        if end == 12:
            assert_refused(made, EmptyClip, "begins with a key frame")
        else:
            assert isinstance(made, list)
            assert abs(int(made[0].arrays["frames"][0].max()) - (16 if begin == 0 else 44)) < 4


def test_streams_are_counted(living: ClipDecoderPool) -> None:
    frames = [jpeg(64, 48)] * 2
    assert decoded(living, avi(frames, (64, 48), num_streams=16))
    assert_refused(outcome(living, avi(frames, (64, 48), num_streams=17)), ClipTooLarge, "16 streams")


@pytest.mark.parametrize("frames", [[], [b"\0" * 50] * 5], ids=["none", "nonsense"])
def test_a_video_without_frames_is_refused(living: ClipDecoderPool, frames: list[bytes]) -> None:
    assert isinstance(outcome(living, avi(frames, (64, 48))), EmptyClip | CorruptClip)


def test_a_damaged_frame_is_stood_in_for_by_the_next_one(living: ClipDecoderPool) -> None:
    good = [jpeg(64, 48, 40 * number) for number in range(6)]
    data = avi([*good[:2], b"\0" * 40, *good[3:5], b"\0" * 40], (64, 48))
    for fps in (10.0, 5.0):
        made = np.concatenate([each.arrays["frames"] for each in decoded(living, data, fps=fps)])
        shades = [round(float(frame.mean()) / 40) for frame in made]
        assert shades == {10.0: [0, 1, 3, 3, 4, 4], 5.0: [0, 3, 4, 4]}[fps]
    assert_refused(outcome(living, avi([good[0], *[b"\0" * 40] * 20, good[1]], (64, 48)), fps=10.0), CorruptClip, "")


# ---- sounds


@pytest.mark.parametrize("kept", [0.01, 0.5, 0.9])
@pytest.mark.parametrize("format_", ["WAV", "FLAC", "OGG", "MP3"])
def test_a_truncated_sound_ends_before_or_is_damaged(living: ClipDecoderPool, format_: str, kept: float) -> None:
    data = encoded(samples(3.0, rate=22_050), 22_050, format_)
    made = outcome(living, data[: int(kept * len(data))], "audio")
    assert isinstance(made, CorruptClip) if isinstance(made, MmcachedError) else made[-1].end_s < 3.0


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (sound(0.1, channels=64), ClipTooLarge, "8 channels"),
        (with_shaken_nan(float("nan")), CorruptClip, "not a number"),
        (with_shaken_nan(float("inf")), CorruptClip, "infinite"),
        (with_shaken_nan(1e30), None, ""),
        (encoded(np.full((4000, 1), 3e38, np.float32), 44_100, subtype="FLOAT"), CorruptClip, "infinite"),
        (patched(sound(0.1), 24, struct.pack("<I", 999)), CorruptClip, "999 samples a second"),
        (patched(sound(0.1), 24, struct.pack("<I", 767_999)), CorruptClip, "factors"),
        (patched(sound(0.1), 24, struct.pack("<I", 4 * 10**9)), CorruptClip, ""),
        (patched(sound(0.1), 40, struct.pack("<I", 2**31 - 1)), None, ""),
        (claiming(sound(0.5, format="FLAC"), 10**9), ClipTooLarge, "limits.max_clip_s"),
        (claiming(sound(0.5, format="FLAC"), 10**6), CorruptClip, "1000000 samples"),
        (encoded(np.zeros((0, 1), np.float32)), EmptyClip, "0 samples"),
    ],
)
def test_a_sound_that_lies_is_refused(
    living: ClipDecoderPool, data: bytes, error: type[MmcachedError] | None, says: str
) -> None:
    made = outcome(living, data, "audio")
    if error is None:
        assert isinstance(made, list)
    else:
        assert_refused(made, error, says)


def test_hours_of_silence_are_refused_before_they_are_decoded() -> None:
    """The pool has a tenth of a second of CPU time for a file, so it has not decoded them."""
    with pool_of(max_clip_s=60.0, clip_cpu_s=0.1) as pool:
        minutes = silence(600.0)
        assert len(minutes) < 1 << 16
        assert_refused(outcome(pool, minutes, "audio"), ClipTooLarge, "ends at 600.000 s")
        assert_refused(outcome(pool, claiming(minutes, 0), "audio"), ClipTooLarge, "ends at 6")
        (short,) = decoded(pool, claiming(minutes, 16_000), "audio")
        assert short.end_s == 1.0
        assert len(decoded(pool, minutes, "audio", end_s=4.0)) == 2


# ---- what names other files


PLAYLISTS = [
    b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{path}\n#EXT-X-ENDLIST\n",
    b"ffconcat version 1.0\nfile {name}\n",
    b'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><BaseURL>{path}</BaseURL></MPD>',
    b"v=0\no=- 0 0 IN IP4 127.0.0.1\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\na=rtpmap:96 H264/90000\n",
    b"[playlist]\nFile1={path}\n",
]


@pytest.mark.parametrize("playlist", PLAYLISTS, ids=lambda playlist: playlist[:10].decode())
def test_a_list_of_files_is_no_clip(living: ClipDecoderPool, playlist: bytes, tmp_path: Path) -> None:
    """Whoever opened the pipe would wait for its other end."""
    pipe = tmp_path / "pipe.mp4"
    os.mkfifo(pipe)
    data = playlist.replace(b"{path}", str(pipe).encode()).replace(b"{name}", pipe.name.encode())
    assert_refused(outcome(living, data), CorruptClip, "is not a file of MP4")
    assert_refused(outcome(living, data, "audio"), CorruptClip, "is not a file of WAV")


def opens(data: bytes) -> bool:
    try:
        OpenVideo(data, ClipOptions("video", num_frames=2), SETTINGS)
    except InvalidRequest:
        return False
    return True


def test_ffmpeg_itself_is_told_to_open_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both files would be read if FFmpeg had its own way, or its operator's."""
    (tmp_path / "other.mp4").write_bytes(video(5, codec="MJPG", suffix=".mp4"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(video_module, "container_of", lambda data, modality: "any")
    playlist = b"ffconcat version 1.0\nfile other.mp4\n"
    reference = referring_to(video(5, codec="MJPG", suffix=".mp4"), tmp_path / "other.mp4")
    monkeypatch.setenv("OPENCV_FFMPEG_CAPTURE_OPTIONS", "enable_drefs;1")
    assert not opens(playlist)
    assert not opens(reference)
    monkeypatch.setattr(video_module, "_FFMPEG_OPTIONS", "enable_drefs;1")
    assert opens(playlist)
    assert opens(reference)


# ---- any damage


@cache
def good_files() -> list[tuple[bytes, str]]:
    videos = [video(6), video(6, codec="MJPG"), video(6, suffix=".mkv"), video(6, codec="VP90")]
    videos += [(MEDIA / name).read_bytes() for name in ("cut.mp4", "parts.mp4", "b_frames.avi")]
    sounds = [encoded(samples(0.2, rate=8000), 8000, format_) for format_ in ("WAV", "FLAC", "OGG", "MP3")]
    sounds += [(MEDIA / name).read_bytes() for name in ("vbr.mp3", "tags.mp3")]
    return [*((data, "video") for data in videos), *((data, "audio") for data in sounds)]


@given(st.data())
@settings(max_examples=examples(120))
def test_any_damage_gives_slices_or_a_typed_error(living: ClipDecoderPool, drawn: st.DataObject) -> None:
    data, modality = drawn.draw(st.sampled_from(good_files()))
    damaged = bytearray(data)
    head = min(len(data), 600)  # where its structure is, mostly
    place = drawn.draw(st.one_of(st.integers(0, head - 1), st.integers(0, len(data) - 1), st.integers(1, head)))
    for offset, byte in enumerate(drawn.draw(st.binary(min_size=1, max_size=4))):
        damaged[-place % len(data) if drawn.draw(st.booleans()) else (place + offset) % len(data)] = byte
    end = drawn.draw(st.one_of(st.just(len(data)), st.integers(0, len(data))))
    made = outcome(living, bytes(damaged[:end]), modality)  # type: ignore[arg-type]
    assert isinstance(made, list | InvalidRequest), made


def test_after_all_that_good_clips_are_decoded(living: ClipDecoderPool) -> None:
    warm_up(living)
