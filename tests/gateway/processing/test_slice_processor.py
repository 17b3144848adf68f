"""From a decoded slice to its item: rows of a pair of frames, rows of a window of a sound; what is refused before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcached.gateway.processing import slice_processor
from mmcached.gateway.processing.item_processor import Processing
from mmcached.gateway.processing.processor import GatewayItem, cut_patches
from mmcached.gateway.processing.slice_processor import DecodedSlice, SliceProcessor
from mmcached.shm.store.codec import decode_record_frames
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ClipTooLarge, CorruptClip, InvalidRequest, InvariantError
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages.parts import ClipOptions
from mmcached.wire.model_config import ModelConfig
from mmcached.wire.vocabulary import Modality
from tests.cache.checkpoints.folders import config_of, write
from tests.house.drawing import examples

MODEL = ModelConfig(patch_size=2, audio_frame=4, audio_window=5)
CONFIG = ServiceConfig(model=MODEL)


def video(*, height: int, width: int, seed: int = 0) -> DecodedSlice:
    frames = np.random.default_rng(seed).integers(0, 256, (2, height, width, 3), dtype=np.uint8)
    return DecodedSlice(0, 0.0, 1.0, {"frames": frames})


def sound(*samples: float) -> DecodedSlice:
    return DecodedSlice(0, 0.0, 1.0, {"samples": np.array(samples, np.float32)})


def arrays(item: GatewayItem) -> Mapping[str, npt.NDArray[Any]]:
    record = decode_record_frames(item.encoded.frames(), tensors="numpy")
    return {name: np.asarray(value) for name, value in record.items()}


@settings(max_examples=examples(15))
@given(rows=st.integers(1, 4), columns=st.integers(1, 4), seed=st.integers(0, 9))
def test_a_row_of_a_video_has_what_both_frames_have_at_a_place(rows: int, columns: int, seed: int) -> None:
    decoded = video(height=2 * rows, width=2 * columns, seed=seed)
    item = SliceProcessor(CONFIG).item(decoded, "video")
    found = arrays(item)
    assert item.num_embeds == rows * columns
    assert found["grid"].tolist() == [rows, columns]
    assert found["frames"].shape == (rows * columns, 2 * 3 * 4)
    assert found["frames"].dtype == np.uint8
    for place, row in enumerate(found["frames"]):
        top, left = 2 * (place // columns), 2 * (place % columns)
        expected = [
            decoded.arrays["frames"][frame, top + down, left + right, channel]
            for frame in range(2)
            for channel in range(3)
            for down in range(2)
            for right in range(2)
        ]
        assert row.tolist() == expected


def test_each_frame_is_cut_as_an_image_is() -> None:
    decoded = video(height=6, width=4)
    frames = arrays(SliceProcessor(CONFIG).item(decoded, "video"))["frames"]
    for number, part in enumerate(np.split(frames, 2, axis=1)):
        assert np.array_equal(part, cut_patches(decoded.arrays["frames"][number], 2))


def test_frames_that_no_grid_has_are_the_decoders_fault() -> None:
    with pytest.raises(InvariantError, match="3 x 4"):
        SliceProcessor(CONFIG).item(video(height=4, width=3), "video")


@pytest.mark.parametrize(
    ("decoded", "modality"),
    [
        (video(height=16, width=10), "video"),
        (video(height=0, width=2), "video"),
        (sound(*[0.0] * 21), "audio"),
        (sound(), "audio"),
    ],
)
def test_slices_that_the_encoder_cannot_take_are_the_decoders_fault(decoded: DecodedSlice, modality: Modality) -> None:
    config = ServiceConfig(model=msgspec.structs.replace(MODEL, max_patches_per_image=39))
    with pytest.raises(InvariantError, match="embeddings"):
        SliceProcessor(config).item(decoded, modality)


def test_samples_are_rounded_clipped_and_filled_up_with_silence() -> None:
    item = SliceProcessor(CONFIG).item(
        sound(0.0, 1 / 32768, -1 / 32768, 0.5, 1.0, -1.0, 3e38, -3e38, 1.6 / 32768), "audio"
    )
    found = arrays(item)["samples"]
    assert item.num_embeds == 3
    assert found.dtype == np.int16
    assert found.tolist() == [[0, 1, -1, 16384], [32767, -32768, 32767, -32768], [2, 0, 0, 0]]


def test_each_16_bit_sample_comes_back_as_it_was() -> None:
    samples = np.arange(-32768, 32768, dtype=np.int16)
    decoded = DecodedSlice(0, 0.0, 1.0, {"samples": samples.astype(np.float32) / np.float32(32768)})
    wide = ServiceConfig(model=ModelConfig(audio_frame=4096, audio_window=16))
    assert np.array_equal(arrays(SliceProcessor(wide).item(decoded, "audio"))["samples"].reshape(-1), samples)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_a_sample_that_is_no_number_is_refused(wrong: float) -> None:
    with pytest.raises(CorruptClip):
        SliceProcessor(CONFIG).item(sound(0.0, wrong), "audio")


def test_slices_of_other_content_form_or_modality_have_other_keys() -> None:
    processing = Processing(CONFIG)
    flat = np.zeros((2, 4, 8, 3), np.uint8)
    slices: list[tuple[Modality, dict[str, npt.NDArray[Any]]]] = [
        ("video", {"frames": flat}),
        ("video", {"frames": flat.reshape(2, 8, 4, 3)}),
        ("video", {"frames": flat + np.uint8(1)}),
        ("audio", {"samples": np.zeros(4, np.float32)}),
        ("audio", {"samples": np.zeros(5, np.float32)}),
    ]
    keys = [
        processing.slice_item(DecodedSlice(0, 0.0, 1.0, content), modality, tenant)[0]
        for modality, content in slices
        for tenant in ("", "a")
    ]
    assert len(set(keys)) == len(keys) == 10
    moved = DecodedSlice(7, 3.0, 4.0, slices[0][1])  # the same content at another place of a clip
    assert processing.slice_item(moved, "video", "")[0] == keys[0]


def test_a_fingerprint_names_what_decides_and_the_decoder() -> None:
    def fingerprint(modality: Modality, model: ModelConfig = MODEL, **limits: Any) -> str:
        return SliceProcessor(ServiceConfig(model=model, limits=LimitsConfig(**limits))).fingerprints[modality]

    videos = [
        fingerprint("video"),
        fingerprint("video", ModelConfig(patch_size=4, audio_frame=4, audio_window=5)),
        fingerprint("video", ModelConfig(patch_size=2, max_patches_per_image=9, audio_frame=4, audio_window=5)),
        fingerprint("video", max_frame_pixels=100),
    ]
    sounds = [
        fingerprint("audio"),
        fingerprint("audio", ModelConfig(patch_size=2, audio_frame=5, audio_window=5)),
        fingerprint("audio", ModelConfig(patch_size=2, audio_frame=4, audio_window=6)),
        fingerprint("audio", max_clip_s=1.0),
    ]
    assert len({*videos, *sounds}) == 8
    assert videos[0].startswith("mmcached video 1; patch 2")
    assert all("opencv-python-headless " in each for each in videos)
    assert all("soundfile " in each and "scipy " in each for each in sounds)
    seeded = ModelConfig(seed=5, patch_size=2, audio_frame=4, audio_window=5)
    assert fingerprint("video", seeded) == videos[0]


def test_what_cannot_be_decoded_here_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slice_processor, "decoder_of", lambda modality: "" if modality == "audio" else "a decoder 1")
    processor = SliceProcessor(CONFIG)
    assert processor.fingerprints["audio"] == ""
    processor.check(ClipOptions("video", fps=1.0), "videos[0]")
    with pytest.raises(InvalidRequest, match=r"audios\[0\].*pip install .\.\[audio\]"):
        processor.check(ClipOptions("audio"), "audios[0]")


def test_a_checkpoint_of_images_takes_no_clips(tmp_path: Path) -> None:
    processor = SliceProcessor(config_of(write(tmp_path)))
    assert processor.fingerprints == {"video": "", "audio": ""}
    with pytest.raises(InvalidRequest, match="checkpoint does not encode it"):
        processor.check(ClipOptions("video", fps=1.0), "videos[0]")


@pytest.mark.parametrize(
    "options",
    [
        ClipOptions("video", fps=2.0),
        ClipOptions("video", num_frames=10),
        ClipOptions("video", start_s=2.0, end_s=7.0, fps=2.0),
        ClipOptions("audio"),
        ClipOptions("audio", start_s=1e6, end_s=1e6 + 20),
    ],
)
def test_options_that_are_taken(options: ClipOptions) -> None:
    SliceProcessor(ServiceConfig(limits=LimitsConfig(max_clip_s=20.0, max_clip_frames=10))).check(options, "f")


@pytest.mark.parametrize(
    ("options", "kind", "field"),
    [
        (ClipOptions("video"), InvalidRequest, "fps"),
        (ClipOptions("video", fps=1.0, num_frames=4), InvalidRequest, "fps"),
        (ClipOptions("audio", fps=1.0), InvalidRequest, "fps"),
        (ClipOptions("audio", num_frames=4), InvalidRequest, "num_frames"),
        (ClipOptions("audio", start_s=3.0, end_s=3.0), InvalidRequest, "end_s"),
        (ClipOptions("video", start_s=3.0, end_s=2.0, fps=1.0), InvalidRequest, "end_s"),
        (ClipOptions("audio", end_s=20.5), ClipTooLarge, "end_s"),
        (ClipOptions("video", num_frames=11), ClipTooLarge, "num_frames"),
        (ClipOptions("video", end_s=5.5, fps=2.0), ClipTooLarge, "fps"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(
    options: ClipOptions, kind: type[InvalidRequest], field: str
) -> None:
    processor = SliceProcessor(ServiceConfig(limits=LimitsConfig(max_clip_s=20.0, max_clip_frames=10)))
    with pytest.raises(InvalidRequest) as refused:
        processor.check(options, "videos[1]")
    assert type(refused.value) is kind
    assert refused.value.details["field"] == f"videos[1].{field}"
