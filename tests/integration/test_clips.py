"""Videos and sounds through a whole service: what the reference model says of them, computed once for each slice."""

from __future__ import annotations

import wave
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import torch

from mmcached.client import Audio, Client, Clip, Video
from mmcached.wire.model_config import ModelConfig
from mmcached.wire.stats import ServiceStats
from tests.clips.files import sound, video, video_and_longer
from tests.integration.local_service import LocalService
from tests.integration.processes import eventually, small_config
from tests.worker.oracle import Item, Oracle, SoundSlice, VideoSlice

CONFIG = small_config(world_size=1, max_model_len=1024, store_gb=1 / 32)
SIDE = 64
"""A multiple of the patch: frames of this size are not scaled."""


@pytest.fixture
def service(run_dir: Path) -> Iterator[Path]:
    with LocalService(run_dir, CONFIG, saves_outputs=True) as service:
        yield run_dir
        eventually(lambda: len(service.gateway.requests), lambda number: number == 0, "open requests")


@pytest.fixture
def client(service: Path) -> Iterator[Client]:
    with Client(service) as client:
        yield client


def frames_of(data: bytes, path: Path) -> list[npt.NDArray[np.uint8]]:
    """Return all frames of a video, RGB, as anybody decodes them."""
    path.write_bytes(data)
    capture, frames = cv2.VideoCapture(str(path)), []
    while (read := capture.read())[0]:
        frames.append(cv2.cvtColor(read[1], cv2.COLOR_BGR2RGB).astype(np.uint8))
    capture.release()
    return frames


def slice_of(*frames: npt.NDArray[np.uint8]) -> VideoSlice:
    """Return two frames as the reference model takes them, patch by patch."""
    patch = ModelConfig().patch_size
    grid = frames[0].shape[0] // patch, frames[0].shape[1] // patch
    places = [(row * patch, column * patch) for row in range(grid[0]) for column in range(grid[1])]
    rows = [
        np.concatenate(
            [
                frame[top : top + patch, left : left + patch, channel].reshape(-1)
                for frame in frames
                for channel in range(3)
            ]
        )
        for top, left in places
    ]
    return VideoSlice(np.stack(rows), grid)


def said_of(*items: Item) -> torch.Tensor:
    oracle = Oracle(ModelConfig())
    return torch.from_numpy(np.concatenate([oracle.encode(item) for item in items]).astype(np.int32))


def encoded(stats: ServiceStats) -> int:
    return stats.engines[0].workers[0].items_encoded


def is_stored(client: Client, number: int) -> None:
    """Wait until the store has so many records of what was encoded."""
    eventually(lambda: client.stats().store.puts, lambda puts: puts >= number, "outputs in the store")


def test_a_video_is_what_the_model_says_of_each_two_frames(client: Client, tmp_path: Path) -> None:
    data = video(25, fps=10, size=(SIDE, SIDE))
    frames = frames_of(data, tmp_path / "clip.mp4")
    (clip,) = client.encode(videos=[data])
    # Two frames a second; the last has no partner, and is there twice.
    pairs = [(0, 5), (10, 15), (20, 20)]
    assert len(clip) == len(pairs)
    assert torch.equal(clip.joined(), said_of(*(slice_of(frames[a], frames[b]) for a, b in pairs)))
    (window,) = client.encode(videos=[Video(data, start_s=1.0, end_s=2.0)])
    assert torch.equal(window.joined(), clip.outputs[1])
    (sampled,) = client.encode(videos=[Video(data, fps=10.0, end_s=0.4)])
    assert torch.equal(sampled.joined(), said_of(slice_of(*frames[:2]), slice_of(*frames[2:4])))


def test_a_sound_is_what_the_model_says_of_each_window(client: Client) -> None:
    data = sound(4.7)
    with wave.open(BytesIO(data)) as file:
        samples = np.frombuffer(file.readframes(1 << 30), np.int16)
    model = ModelConfig()
    length = model.audio_frame * model.audio_window
    windows = []
    for first in range(0, len(samples), length):
        window = samples[first : first + length]
        padded = np.zeros(-(-len(window) // model.audio_frame) * model.audio_frame, np.int16)
        padded[: len(window)] = window
        windows.append(SoundSlice(padded.reshape(-1, model.audio_frame)))
    (clip,) = client.encode(audios=[data])
    assert torch.equal(clip.joined(), said_of(*windows))
    assert [begin for begin, _ in clip.times] == [0.0, 2.0, 4.0]


def test_a_known_clip_is_found_without_a_message(service: Path, client: Client) -> None:
    film, tune = video(20), sound(3.0)
    first = client.encode(videos=[film], audios=[tune])
    is_stored(client, 1 + 2 + 2 + 2 + 2 + 2)  # of the service's own first request; outputs, names and lists of slices
    before = client.stats()
    with Client(service) as another:
        for view in (False, True):
            found = another.encode(videos=[film], audios=[tune], view=view)
            assert [each.times for each in found] == [each.times for each in first]
            assert all(torch.equal(a.joined(), b.joined()) for a, b in zip(found, first, strict=True))
            del found
    after = client.stats()
    assert (after.requests_done, encoded(after)) == (before.requests_done, encoded(before))


def test_what_windows_and_longer_clips_share_is_encoded_once(client: Client) -> None:
    film, longer = video_and_longer(20, 10)
    half, other = Video(film, end_s=1.0, fps=4.0), Video(film, start_s=0.5, end_s=1.5, fps=4.0)
    before = encoded(client.stats())

    def num_encoded() -> int:
        return encoded(client.stats()) - before

    (a,) = client.encode(videos=[half])
    assert num_encoded() == len(a) == 2
    (b,) = client.encode(videos=[other])
    assert (len(b), num_encoded()) == (2, 3), "half of it is known"
    assert torch.equal(a.outputs[1], b.outputs[0])
    (whole,) = client.encode(videos=[film])
    assert num_encoded() == 3 + len(whole)
    (more,) = client.encode(videos=[longer])
    assert len(more) == len(whole) + 1
    assert num_encoded() == 3 + len(more), "the file is another one, its frames are not"
    assert torch.equal(more.joined()[: len(whole.joined())], whole.joined())


def test_clips_and_images_in_one_prompt_come_in_their_order(client: Client) -> None:
    film, tune = video(10), sound(1.0)
    first, second, again = (
        client.generate(prompt, videos=[film], audios=[tune], max_tokens=4, hidden_states=True).rows
        for prompt in ("<video> and <audio>", "<audio> and <video>", "<video> and <audio>")
    )
    assert torch.equal(first["hidden_states"].tensor, again["hidden_states"].tensor)
    assert not torch.equal(first["hidden_states"].tensor, second["hidden_states"].tensor)


def test_a_clip_is_a_clip(client: Client) -> None:
    image = cv2.imencode(".png", np.zeros((40, 40, 3), np.uint8))[1].tobytes()
    output, clip, other = client.encode([image], videos=[video(10)], audios=[Audio(sound(1.0), end_s=0.5)])
    assert isinstance(output, torch.Tensor)
    assert isinstance(clip, Clip)
    assert other.times == [(0.0, 0.5)]
