"""Items of a checkpoint's processor: what is kept of its tensors, and what its fingerprint depends on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mmcached.cache.checkpoints.checkpoint import Checkpoint
from mmcached.gateway.processing import checkpoint_processor
from mmcached.gateway.processing.checkpoint_processor import CheckpointProcessor
from mmcached.gateway.processing.decoder_process import DecodedTensors, Pixels
from mmcached.gateway.processing.item_processor import Processing
from mmcached.gateway.processing.media import Medium
from mmcached.shm.store.codec import decode_record_frames
from mmcached.wire.errors import InvalidRequest, InvariantError
from tests.cache.checkpoints.folders import CLIP, CROPPED, config_of, write

IMAGE = Medium("image", b"file", "images[0]")
PIXELS = np.arange(3 * 56 * 56, dtype=np.float32).reshape(1, 3, 56, 56)


def processor_of(folder: Path) -> CheckpointProcessor:
    return CheckpointProcessor(Checkpoint.open(folder), "limits")


def test_an_item_is_what_the_tower_takes(tmp_path: Path) -> None:
    made = DecodedTensors({"pixel_values": PIXELS, "num_crops": np.zeros(1, np.int64)})
    item = processor_of(write(tmp_path)).item(made)
    record = decode_record_frames(item.encoded.frames(), tensors="numpy")
    assert list(record) == ["pixel_values"]
    assert np.array_equal(record["pixel_values"], PIXELS)
    assert item.num_embeds == 17


def test_what_is_not_there_or_no_tensor_is_refused(tmp_path: Path) -> None:
    processor = processor_of(write(tmp_path))
    with pytest.raises(InvalidRequest, match="pixel_values"):
        processor.item(DecodedTensors({}))
    with pytest.raises(InvariantError):
        processor.item(Pixels(1, 1, b"rgb"))


def test_an_items_key_follows_what_decides_its_tensors(tmp_path: Path) -> None:
    others = [write(tmp_path / "a"), write(tmp_path / "b", processor=CROPPED | {"resample": 2})]
    others.append(write(tmp_path / "c", CLIP | {"patch_size": 28}))
    keys = [Processing(config_of(folder)).keys(IMAGE, "") for folder in others]
    assert len(set(keys)) == 3
    assert Processing(config_of(write(tmp_path / "d"))).keys(IMAGE, "") == keys[0], "where it lies does not matter"


@pytest.mark.parametrize("drift", ["versions", "options", "backend", "limits", "model"])
def test_an_item_of_another_processor_has_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drift: str
) -> None:
    before = processor_of(write(tmp_path / "a")).fingerprint
    assert processor_of(write(tmp_path / "b")).fingerprint == before
    folder, limits = write(tmp_path / "c"), "limits"
    if drift == "versions":
        monkeypatch.setattr(checkpoint_processor, "library_versions", lambda: {"pillow": "0"})
    elif drift == "options":
        folder = write(tmp_path / "d", processor=CROPPED | {"do_normalize": False})
    elif drift == "backend":
        folder = write(tmp_path / "d", processor=CROPPED | {"image_processor_type": "CLIPImageProcessorPil"})
    elif drift == "model":
        folder = write(tmp_path / "d", CLIP | {"patch_size": 28})
    else:
        limits = "other"
    assert CheckpointProcessor(Checkpoint.open(folder), limits).fingerprint != before
