"""Makes small videos and sounds with the ffmpeg that is installed, and writes down what ffmpeg shows and plays of them.

    python -m tests.clips.media.make        writes them into this folder, with `expected.json`

Each frame of a video has one shade, lighter than that of the frame before, so its pixels say which it is. Of a sound
the length and the loudness are compared. The suite checks these files, `make soak` makes and checks new ones.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from tests.clips.boxes import with_edits

HERE = Path(__file__).parent

_FRAMES = "-f lavfi -i nullsrc=s={size}:r={rate}:d=2,geq=lum=20+4*N:cb=128:cr=128"
_GREY = _FRAMES.format(size="64x48", rate=25)
_H264 = _GREY + " -c:v libx264 -pix_fmt yuv420p -g 12 "
_X265 = _GREY + " -c:v libx265 -pix_fmt yuv420p -x265-params log-level=none:keyint=12:"
_TONE = """-f lavfi -i "aevalsrc='(0.02+0.4*gt(t,1))*(sin(900*t*t)+random(0)-0.5)':s=16000:d=2.5" -c:a libmp3lame """

VIDEOS = {
    "b_frames.mp4": _H264 + "-bf 2",
    "open_gop.mp4": _H264 + "-bf 3 -x264-params open-gop=1",
    "one_gop.mp4": _H264 + "-g 250 -bf 2",
    "ntsc.mp4": _FRAMES.format(size="64x48", rate="30000/1001") + " -c:v libx264 -pix_fmt yuv420p -g 12 -frames:v 50",
    "uneven.mp4": _H264 + """-vf "select='lt(mod(n*n,7),4)'" -fps_mode vfr -bf 2""",
    "turned.mp4": "-i b_frames.mp4 -c copy -metadata:s:v rotate=90",
    "hevc.mp4": _X265 + "open-gop=1",
    "cut.mp4": "-ss 0.84 -i one_gop.mp4 -c copy",
    "cut_hevc.mp4": "-ss 0.68 -i hevc.mp4 -c copy",
    "cut_open_gop.mov": "-ss 0.68 -i open_gop.mp4 -c copy",
    "cut_fragments.mp4": "-ss 0.68 -i b_frames.mp4 -c copy -movflags frag_keyframe+empty_moov",
    "cut_with_sound.mp4": "-ss 0.68 -i b_frames.mp4 -f lavfi -i sine=d=2 -map 0 -map 1 -c:v copy -c:a aac -b:a 16k",
    "late.mp4": "-itsoffset 1 -i b_frames.mp4 -c copy",
    "late.mkv": "-itsoffset 1 -i open_gop.mp4 -c copy",
    "uneven.mkv": "-i uneven.mp4 -c copy",
    "odd_size.webm": _FRAMES.format(size="65x47", rate=25) + " -c:v libvpx-vp9 -pix_fmt yuv444p -g 12",
    "vp8.webm": _GREY + " -c:v libvpx -b:v 50k -g 25",
    "with_opus.webm": "-i vp8.webm -f lavfi -i sine=d=2 -map 0 -map 1 -c:v copy -c:a libopus -b:a 16k",
    "no_b_frames.avi": _GREY + " -c:v mpeg4 -q:v 8 -g 12",
    "b_frames.avi": _GREY + " -c:v mpeg4 -q:v 8 -g 12 -bf 2",
    "packed.avi": _GREY + " -c:v libxvid -q:v 8 -g 12 -bf 2",
    "h264.avi": _H264 + "-bf 2",
}
"""What ffmpeg is told, by the name of the file that it makes; a later one may be made from a former one."""

EDITED = {
    "tail.mp4": ("b_frames.mp4", [(1300, 1024)]),
    "middle.mp4": ("open_gop.mp4", [(700, 1024 + 20 * 512)]),
    "late_and_cut.mp4": ("one_gop.mp4", [(500, -1), (700, 1024 + 20 * 512)]),
    "parts.mp4": ("one_gop.mp4", [(400, 1024 + 30 * 512), (600, 1024 + 3 * 512)]),
}
"""From which file, and with which edit list: lengths in milliseconds, and beginnings."""

SOUNDS = {
    "table.mp3": _TONE + "-b:a 24k",
    "cbr.mp3": _TONE + "-b:a 24k -write_xing 0",
    "vbr.mp3": _TONE + "-q:a 9 -write_xing 0",
    "tags.mp3": _TONE + "-q:a 9 -write_xing 0 -metadata title=tags -write_id3v1 1",
    "no_tags.mp3": _TONE + "-b:a 24k -write_xing 0 -id3v2_version 0",
    "piped.mp3": _TONE + "-q:a 9 -f mp3 pipe:1",
}


def make(folder: Path) -> None:
    """Make all files in a folder."""
    for name, arguments in (VIDEOS | SOUNDS).items():
        command = ["ffmpeg", "-v", "error", "-y", *shlex.split(arguments), "-fflags", "+bitexact"]
        made = _output([*command, *([] if "pipe:1" in command else [name])], folder)
        if made:
            (folder / name).write_bytes(made)
    for name, (source, edits) in EDITED.items():
        (folder / name).write_bytes(with_edits((folder / source).read_bytes(), edits))


def expected_video(path: Path) -> dict[str, Any]:
    """Return the times of the frames that ffmpeg shows, since the first one, and their shades."""
    entries = "stream=width,height:frame=best_effort_timestamp_time"
    command = ["ffprobe", "-v", "error", "-select_streams", "v:0", "-show_entries", entries, "-of", "json", str(path)]
    found = json.loads(_output(command))
    times = [float(each.get("best_effort_timestamp_time", "nan")) for each in found["frames"]]
    for number, time in enumerate(times):
        if np.isnan(time):  # ffprobe does not know it of the last frames of an AVI file
            times[number] = 2 * times[number - 1] - times[number - 2]
    raw = ["-map", "0:v:0", "-fps_mode", "passthrough", "-vf", "scale=8:8:flags=area", "-pix_fmt", "rgb24"]
    frames = np.frombuffer(_output(["ffmpeg", "-v", "error", "-i", str(path), *raw, "-f", "rawvideo", "-"]), np.uint8)
    shades = frames.reshape(len(times), -1).mean(axis=1)
    return {
        "times": [round(each - times[0], 6) for each in times],
        "shades": [round(float(each), 1) for each in shades],
    }


def expected_sound(path: Path) -> dict[str, Any]:
    """Return how many samples ffmpeg plays, and how loud each tenth of a second is."""
    command = ["ffmpeg", "-v", "error", "-i", str(path), "-f", "f32le", "-"]
    samples = np.frombuffer(_output(command), np.float32)
    return {"samples": len(samples), "levels": levels(samples)}


def levels(samples: np.ndarray[Any, Any]) -> list[float]:
    """Return how loud each tenth of a second is, of samples at 16,000 a second."""
    tenths = np.split(samples, range(1600, len(samples), 1600))
    return [round(float(np.sqrt(np.mean(np.square(each)))), 4) for each in tenths]


def expected(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what ffmpeg shows and plays of the files in a folder."""
    found = {name: expected_video(folder / name) for name in [*VIDEOS, *EDITED]}
    return found | {name: expected_sound(folder / name) for name in SOUNDS}


def _output(command: list[str], folder: Path = HERE) -> bytes:
    return subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout


if __name__ == "__main__":
    make(HERE)
    rows = ",\n".join(f'"{name}": {json.dumps(each)}' for name, each in expected(HERE).items())
    (HERE / "expected.json").write_text("{\n" + rows + "\n}\n")
