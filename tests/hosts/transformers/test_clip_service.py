"""A service with a checkpoint says of a clip's slices what Transformers says of each alone, and encodes each once."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmcached.cache.checkpoints.checkpoint import Checkpoint, frame_sizes, window_samples
from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client, Video
from mmcached.clips.settings import ClipSettings
from mmcached.clips.versions import decoder_of
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.messages.parts import ClipOptions
from tests.hosts.transformers.checkpoints import PICTURES, save
from tests.hosts.transformers.test_clips import features_of, loaded, record_of, taken
from tests.hosts.transformers.test_encoders import config_of
from tests.hosts.transformers.test_sounds import heard

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not (decoder_of("video") and decoder_of("audio")), reason="needs pip install '.[video,audio]'"),
]


def num_encoded(client: Client) -> int:
    return client.stats().engines[0].workers[0].items_encoded


def test_three_modalities_of_one_checkpoint_are_encoded_once(run_dir: Path, tmp_path: Path) -> None:
    from tests.clips import files

    folder = save("qwen2_5_omni", tmp_path / "checkpoint")
    model = loaded(folder)
    film, sound = files.video(8, codec="FFV1"), files.sound(2.5)
    with ChildService(run_dir, config_of(folder), tmp_path / "config.json"), Client(run_dir) as client:
        before = num_encoded(client)
        for _ in range(2):
            _, video, audio = client.encode(PICTURES[:1], videos=[Video(film, fps=10.0)], audios=[sound])
            assert [len(video), len(audio)] == [4, 3]
            for found, wanted in zip(video.outputs, _of_video(folder, model, film), strict=True):
                assert torch.equal(found, wanted)
            for found, wanted in zip(audio.outputs, _of_sound(folder, model, sound), strict=True):
                assert torch.equal(found, wanted)
        (trimmed,) = client.encode(videos=[Video(film, fps=10.0, start_s=0.2, end_s=0.6)])
        assert all(torch.equal(one, other) for one, other in zip(trimmed.outputs, video.outputs[1:3], strict=True))
        assert num_encoded(client) - before == 1 + 4 + 3


def _of_video(folder: Path, model: Any, file: bytes) -> Iterator[torch.Tensor]:
    from mmcached.clips.video import OpenVideo

    config = config_of(folder)
    settings = ClipSettings.from_config(config, "video", sizes=frame_sizes(config))
    opened = OpenVideo(file, ClipOptions("video", fps=10.0), settings)
    for piece in opened.pieces:
        record, _ = record_of(folder, frames=opened.decode(piece))
        yield features_of(model, taken(folder, record))[0]


def _of_sound(folder: Path, model: Any, file: bytes) -> Iterator[torch.Tensor]:
    import soundfile

    samples = soundfile.read(BytesIO(file), dtype="float32")[0]
    for part in np.split(samples, range(window := window_samples(config_of(folder)), len(samples), window)):
        record, _ = record_of(folder, samples=part)
        yield heard(model.model, record["input_features"])


@pytest.mark.soak
@pytest.mark.parametrize("family", ["whisper", "qwen3_omni"])
def test_a_service_of_sounds_alone_is_ready_and_refuses_images(run_dir: Path, tmp_path: Path, family: str) -> None:
    from tests.clips import files

    folder = save(family, tmp_path / "checkpoint")
    with ChildService(run_dir, config_of(folder), tmp_path / "config.json"), Client(run_dir) as client:
        before = num_encoded(client)
        for _ in range(2):
            (audio,) = client.encode(audios=[files.sound(2.5)])
            assert sum(len(each) for each in audio.outputs) <= 3 * Checkpoint.open(folder).max_embeds_per_item
        assert num_encoded(client) - before == len(audio)
        with pytest.raises(InvalidRequest, match=r"images\[0\].*does not encode it"):
            client.encode(PICTURES[:1])
