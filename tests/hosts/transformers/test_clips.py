"""A slice of a clip has the outputs that Transformers gives for that slice alone, bit for bit."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers
from PIL import Image
from transformers.models.videomae.image_processing_pil_videomae import VideoMAEImageProcessorPil
from transformers.utils import is_torchvision_available

from mmcached.cache.checkpoints.checkpoint import Checkpoint, frame_sizes
from mmcached.cache.checkpoints.frames import FrameGrid, WholeClip
from mmcached.clips.frame_sizes import EdgeSizes, FrameSizes
from mmcached.gateway.processing.slice_processor import DecodedSlice, SliceProcessor
from mmcached.shm.store.codec import decode_record_frames
from mmcached.wire.model_config import EncoderConfig
from mmcached.worker.encoders.checkpoint import CheckpointEncoder
from mmcached.worker.encoders.encoder import outputs_in
from mmcached.worker.encoders.pixels import normalised
from tests.cache.checkpoints.folders import config_of
from tests.hosts.transformers.checkpoints import OUTPUTS, save

CPU = torch.device("cpu")
VIDEO = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen2_5_omni")
Dtype = Literal["fp32", "bf16"]
DTYPES: Mapping[Dtype, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
Outputs = list[torch.Tensor]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def frames_of(folder: Path, num_frames: int, width: int = 160, height: int = 90) -> npt.NDArray[np.uint8]:
    """Return frames of the size that a decoder of this folder's service scales them to."""
    sizes = frame_sizes(config_of(folder))
    assert isinstance(sizes, FrameSizes)
    wide, high = sizes.of(width, height)
    return np.random.default_rng(5).integers(0, 256, (num_frames, high, wide, 3), np.uint8)


def record_of(folder: Path, **arrays: npt.NDArray[Any]) -> tuple[dict[str, Any], int]:
    """Return the record of a slice and its embeddings, as a frontend makes them."""
    item = SliceProcessor(config_of(folder)).item(
        DecodedSlice(0, 0.0, 1.0, arrays), "video" if "frames" in arrays else "audio"
    )
    return decode_record_frames(item.encoded.frames(), tensors="torch"), item.num_embeds


def loaded(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Return the model of a folder; one that is rounded in memory would round frequencies, too."""
    config = transformers.AutoConfig.from_pretrained(folder)
    return getattr(transformers, config.architectures[0]).from_pretrained(folder, dtype=dtype).eval()


def taken(folder: Path, record: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a record with colours as a tower takes them."""
    checkpoint = Checkpoint.open(folder)
    counting = checkpoint.countings["video"]
    assert isinstance(counting, (FrameGrid, WholeClip))
    name = counting.inputs[0]
    return {**record, name: normalised(record[name], counting, checkpoint.processors["video"])}


def features_of(model: Any, record: Mapping[str, torch.Tensor]) -> Outputs:
    """Return what Transformers gives for the slices of a record, one after the other."""
    placed = {name: each.to(model.dtype) if each.is_floating_point() else each for name, each in record.items()}
    with torch.no_grad():
        output = model.get_video_features(**placed, return_dict=True)
    return [output.pooler_output[0], *(level[0] for level in getattr(output, "deepstack_features", []))]


def together(records: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return the record of the clip that consists of these slices."""
    grid = records[0]["video_grid_thw"].clone()
    grid[0, 0] = len(records)
    return {"pixel_values_videos": torch.cat([each["pixel_values_videos"] for each in records]), "video_grid_thw": grid}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", VIDEO)
def test_outputs_of_a_slice_are_those_of_transformers_alone(tmp_path: Path, family: str, dtype: Dtype) -> None:
    folder = save(family, tmp_path)
    encoder = CheckpointEncoder(EncoderConfig(kind="hf", path=str(folder), dtype=dtype), CPU)
    measured = encoder.measure()
    assert [each.name for each in measured.form.outputs] == OUTPUTS.get(family, ["embeddings"])
    inputs = {modality: forms[0].name for modality, forms in measured.form.inputs.items()}
    sounds = {"audio": "input_features"} if family == "qwen2_5_omni" else {}
    assert inputs == {"image": "pixel_values", "video": "pixel_values_videos"} | sounds
    model = loaded(folder, DTYPES[dtype])
    frames = frames_of(folder, 6)
    records = [record_of(folder, frames=frames[first : first + 2]) for first in (0, 2, 4)]
    whole = features_of(model, together([taken(folder, record) for record, _ in records]))
    for number, (record, num_embeds) in enumerate(records):
        outputs = encoder.encode(record, num_embeds)
        wanted = features_of(model, taken(folder, record))
        assert all(torch.equal(one, other) for one, other in zip(outputs.values(), wanted, strict=True))
        assert 1 <= num_embeds <= Checkpoint.open(folder).max_embeds_per_item
        assert outputs_in(outputs, measured.form, num_embeds) is not None
        # Of the whole clip it is the same but for rounding, in the order of sums.
        rows = slice(number * num_embeds, (number + 1) * num_embeds)
        for output, of_all in zip(outputs.values(), whole, strict=True):
            assert torch.allclose(output.float(), of_all[rows].float(), rtol=0, atol=2e-3 if dtype == "bf16" else 1e-6)


@pytest.mark.parametrize("family", VIDEO)
def test_a_slice_depends_on_no_other(tmp_path: Path, family: str) -> None:
    """In a clip of one length a slice has the same bits, whatever the others show: what differs alone is rounding."""
    folder = save(family, tmp_path)
    model = loaded(folder)
    frames = frames_of(folder, 6)
    whole = [taken(folder, record_of(folder, frames=frames[first : first + 2])[0]) for first in (0, 2, 4)]
    other = taken(folder, record_of(folder, frames=255 - frames[:2])[0])
    num_rows = len(features_of(model, other)[0])
    before, after = features_of(model, together(whole)), features_of(model, together([other, *whole[1:]]))
    for one, another in zip(before, after, strict=True):
        assert not torch.equal(one[:num_rows], another[:num_rows])
        assert torch.equal(one[num_rows:], another[num_rows:])


def test_frames_are_encoded_as_a_picture_is(tmp_path: Path) -> None:
    folder = save("qwen2_5_vl", tmp_path)
    encoder = CheckpointEncoder(config_of(folder).encoder, CPU)
    record, num_embeds = record_of(folder, frames=frames_of(folder, 2))
    image = {"pixel_values": taken(folder, record)["pixel_values_videos"], "image_grid_thw": record["video_grid_thw"]}
    found = [encoder.encode(each, num_embeds)["embeddings"] for each in (record, image)]
    assert torch.equal(*found)


@pytest.mark.skipif(not is_torchvision_available(), reason="torchvision is not installed")
@pytest.mark.parametrize("family", VIDEO)
@pytest.mark.parametrize("form", [(160, 90), (64, 48), (60, 500), (1920, 1080), (20, 100)], ids=str)
def test_pixels_and_sizes_are_those_of_the_video_processor(tmp_path: Path, family: str, form: tuple[int, int]) -> None:
    name = {"qwen3_vl": "Qwen3VL"}.get(family, "Qwen2VL")
    path = (
        f"transformers.models.{name.lower().replace('vl', '_vl')}.video_processing_{name.lower().replace('vl', '_vl')}"
    )
    folder = save(family, tmp_path)
    settings = dict(Checkpoint.open(folder).processors["video"], cap_pixels_per_frame=True)
    settings = {key: value for key, value in settings.items() if not key.endswith("_type")}
    processor = getattr(importlib.import_module(path), f"{name}VideoProcessor")(**settings)
    frames = frames_of(folder, 2, *form)
    record = taken(folder, record_of(folder, frames=frames)[0])
    asked = {"do_sample_frames": False, "return_tensors": "pt"}
    wanted = processor(videos=[frames], do_resize=False, **asked)
    assert all(torch.equal(record[each], wanted[each]) for each in wanted)
    original = np.zeros((2, form[1], form[0], 3), np.uint8)
    assert torch.equal(processor(videos=[original], **asked)["video_grid_thw"], record["video_grid_thw"])


def test_a_frame_is_cut_as_the_image_processor_cuts_pictures(tmp_path: Path) -> None:
    folder = save("qwen2_5_vl", tmp_path)
    frames = frames_of(folder, 2)
    record = taken(folder, record_of(folder, frames=frames)[0])
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    images = [processor(images=frame, do_resize=False, return_tensors="pt")["pixel_values"] for frame in frames]
    found, first, second = (each.reshape(len(images[0]), 3, 2, -1) for each in (record["pixel_values_videos"], *images))
    assert torch.allclose(found[:, :, 0], first[:, :, 0], atol=1e-6)
    assert torch.allclose(found[:, :, 1], second[:, :, 1], atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tower_that_looks_at_all_frames_is_given_the_whole_clip(tmp_path: Path, dtype: Dtype) -> None:
    folder = save("videomae", tmp_path)
    encoder = CheckpointEncoder(EncoderConfig(kind="hf", path=str(folder), dtype=dtype), CPU)
    measured = encoder.measure()
    model = loaded(folder, DTYPES[dtype])
    sizes = frame_sizes(config_of(folder))
    assert isinstance(sizes, EdgeSizes)
    assert sizes.of(160, 90) == (64, 36)
    original = np.random.default_rng(5).integers(0, 256, (4, 90, 160, 3), np.uint8)
    frames = [Image.fromarray(each).resize(sizes.of(160, 90), Image.Resampling(sizes.resample)) for each in original]
    record, num_embeds = record_of(folder, frames=np.stack([np.asarray(each) for each in frames]))
    processor = VideoMAEImageProcessorPil.from_pretrained(folder)
    pixels = taken(folder, record)["pixel_values"]
    assert torch.allclose(pixels, processor(list(original), return_tensors="pt")["pixel_values"], rtol=0, atol=1e-6)
    outputs = encoder.encode(record, num_embeds)
    with torch.no_grad():
        of_all = model(pixels.to(model.dtype)).last_hidden_state[0]
    assert torch.equal(outputs["last_hidden_state"], of_all)
    assert outputs_in(outputs, measured.form, num_embeds) is not None
    assert len(of_all) == num_embeds == Checkpoint.open(folder).max_embeds_per_item == 8
    # What the first two frames give depends on the last two: slices of two would be something else.
    with torch.no_grad():
        other = torch.cat([pixels[:, :2], -pixels[:, 2:]], dim=1)
        assert not torch.equal(model(other.to(model.dtype)).last_hidden_state[0, :4], of_all[:4])
