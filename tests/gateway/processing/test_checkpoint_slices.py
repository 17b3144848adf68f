"""Items of slices that a checkpoint's towers take; `tests/hosts/transformers` compares them with its processors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmcached.cache.checkpoints.checkpoint import Checkpoint, frames_of_slice
from mmcached.gateway.processing.checkpoint_slices import CheckpointSlices
from mmcached.gateway.processing.item_processor import Processing
from mmcached.gateway.processing.media import Medium
from mmcached.gateway.processing.slice_processor import DecodedSlice, SliceProcessor
from mmcached.shm.store.codec import decode_record_frames
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CorruptClip, InvalidRequest, InvariantError
from mmcached.wire.messages.parts import ClipOptions
from tests.cache.checkpoints.folders import config_of, write
from tests.cache.checkpoints.test_frames import QWEN, SMALL
from tests.cache.checkpoints.test_sounds import EXTRACTOR, WHISPER

PATCH = {"patch_size": 2, "merge_size": 2, "image_mean": [0.5, 0.25, 0.0], "image_std": [0.5, 1.0, 2.0]}


def slices_of(folder: Path, settings: dict[str, Any]) -> CheckpointSlices:
    return CheckpointSlices(Checkpoint.open(write(folder, QWEN, settings)))


def test_a_row_is_a_patch_of_both_frames_square_by_square(tmp_path: Path) -> None:
    frames = np.random.default_rng(1).integers(0, 256, (2, 4, 12, 3), np.uint8)
    item = slices_of(tmp_path, SMALL | PATCH).item({"frames": frames}, "video")
    record = decode_record_frames(item.encoded.frames(), tensors="numpy")
    assert item.num_embeds == 3
    assert record["video_grid_thw"].tolist() == [[1, 2, 6]]
    rows = iter(record["pixel_values_videos"])
    for left in (0, 4, 8):
        for y, x in ((0, left), (0, left + 2), (2, left), (2, left + 2)):
            assert next(rows).tolist() == frames[:, y : y + 2, x : x + 2].transpose(3, 0, 1, 2).ravel().tolist()


@pytest.mark.parametrize("shape", [(2, 4, 6, 3), (3, 4, 4, 3), (2, 2, 4, 3)])
def test_frames_that_no_grid_has_are_the_decoders_fault(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvariantError):
        slices_of(tmp_path, SMALL | PATCH).item({"frames": np.zeros(shape, np.uint8)}, "video")


def test_a_window_of_a_sound_is_filled_up_with_silence(tmp_path: Path) -> None:
    slices = CheckpointSlices(Checkpoint.open(write(tmp_path, WHISPER, EXTRACTOR)))
    item = slices.item({"samples": np.full(1600, 0.25, np.float32)}, "audio")
    features = decode_record_frames(item.encoded.frames(), tensors="numpy")["input_features"]
    assert item.num_embeds == 50
    assert features.shape == (1, 80, 100)
    assert features.max() - features.min() <= 2.0, "what is quieter than the loudest by 80 dB counts as silent"
    assert np.all(features[..., 15:] == features.min())
    whole = slices.item({"samples": np.pad(np.full(1600, 0.25, np.float32), (0, 14_400))}, "audio")
    assert whole.encoded.frames() == item.encoded.frames()


def test_samples_that_are_none_or_too_many_are_refused(tmp_path: Path) -> None:
    slices = CheckpointSlices(Checkpoint.open(write(tmp_path, WHISPER, EXTRACTOR)))
    with pytest.raises(CorruptClip):
        slices.item({"samples": np.array([0.0, np.nan], np.float32)}, "audio")
    with pytest.raises(InvariantError, match="16001"):
        slices.item({"samples": np.zeros(16_001, np.float32)}, "audio")


def test_a_checkpoint_of_sounds_takes_no_images(tmp_path: Path) -> None:
    processing = Processing(config_of(write(tmp_path, WHISPER, EXTRACTOR)))
    assert processing.fingerprints["image"] == processing.fingerprints["video"] == ""
    assert "soundfile" in processing.fingerprints["audio"]
    with pytest.raises(InvalidRequest, match=r"images\[0\].*does not encode it"):
        processing.check(Medium("image", b"file", "images[0]"))


def test_a_fingerprint_follows_from_settings_and_decoder(tmp_path: Path) -> None:
    folders = [write(tmp_path / name, QWEN, SMALL | settings) for name, settings in (("a", {}), ("b", PATCH))]
    processors = [SliceProcessor(config_of(folder)) for folder in [*folders, write(tmp_path / "c", QWEN, SMALL)]]
    videos = [each.fingerprints["video"] for each in processors]
    assert videos[0] == videos[2] != videos[1]
    assert all("opencv" in each for each in videos)
    assert processors[0].fingerprints["audio"] == ""
    decoded = DecodedSlice(0, 0.0, 1.0, {"frames": np.zeros((2, 28, 56, 3), np.uint8)})
    assert processors[0].item(decoded, "video").num_embeds == 2


VIDEOMAE = {"architectures": ["VideoMAEModel"], "num_frames": 4, "patch_size": 2, "tubelet_size": 2}
MIDDLE = {"size": {"shortest_edge": 4}, "crop_size": {"height": 4, "width": 4}}


def test_a_whole_clip_is_one_item_of_the_middle_of_its_frames(tmp_path: Path) -> None:
    folder = write(tmp_path, VIDEOMAE, MIDDLE)
    assert frames_of_slice(config_of(folder)) == 4
    frames = np.random.default_rng(1).integers(0, 256, (4, 4, 9, 3), np.uint8)
    item = CheckpointSlices(Checkpoint.open(folder)).item({"frames": frames}, "video")
    pixels = decode_record_frames(item.encoded.frames(), tensors="numpy")["pixel_values"]
    assert item.num_embeds == Checkpoint.open(folder).max_embeds_per_item == 2 * 2 * 2
    assert np.array_equal(pixels, frames[:, :, 2:6].transpose(0, 3, 1, 2)[None])
    with pytest.raises(InvariantError, match="9 x 3"):
        CheckpointSlices(Checkpoint.open(folder)).item({"frames": frames[:, :3]}, "video")


def test_of_a_tower_that_looks_at_all_frames_so_many_are_wanted(tmp_path: Path) -> None:
    processor = SliceProcessor(config_of(write(tmp_path, VIDEOMAE, MIDDLE)))
    processor.check(ClipOptions("video", num_frames=4), "videos[0]")
    for options in (ClipOptions("video", num_frames=5), ClipOptions("video", fps=2.0)):
        with pytest.raises(InvalidRequest, match=r"videos\[0\]\.num_frames.*must be 4"):
            processor.check(options, "videos[0]")


def test_two_frames_are_given_together_unless_a_tower_wants_more(tmp_path: Path) -> None:
    assert frames_of_slice(ServiceConfig()) == 2
    assert frames_of_slice(config_of(write(tmp_path, QWEN, SMALL))) == 2
