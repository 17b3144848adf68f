"""How sounds are cut for towers, and how windows are counted; `tests/hosts/transformers` compares with the towers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from mmcached.cache.checkpoints import checkpoint
from mmcached.cache.checkpoints.architectures import ARCHITECTURES
from mmcached.cache.checkpoints.checkpoint import Checkpoint, check_encoder, window_samples
from mmcached.cache.checkpoints.sounds import Chunked, Filled
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError, InvalidRequest
from tests.cache.checkpoints.folders import config_of, write

WHISPER = {"architectures": ["WhisperForConditionalGeneration"], "max_source_positions": 50}
EXTRACTOR = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 80, "chunk_length": 1}
OMNI_2 = cast(Chunked, ARCHITECTURES["Qwen2_5OmniForConditionalGeneration"]["audio"])
OMNI_3 = cast(Chunked, ARCHITECTURES["Qwen3OmniMoeForConditionalGeneration"]["audio"])


def mel(num_frames: int, num_sounds: int = 1) -> dict[str, Any]:
    return {"input_features": np.zeros((num_sounds, 80, num_frames), np.float32)}


def test_a_window_of_whisper_is_as_long_as_its_positions(tmp_path: Path) -> None:
    folder = write(tmp_path, WHISPER, EXTRACTOR)
    assert window_samples(config_of(folder)) == 16_000
    opened = Checkpoint.open(folder)
    assert opened.processors == {"audio": EXTRACTOR}
    assert opened.max_embeds_per_item == opened.num_embeds("audio", mel(100)) == 50
    assert Filled().frames(123, WHISPER, EXTRACTOR) == (16_000, 100)
    assert Filled().window({}, {}) == 30 * 16_000


def test_another_encoder_has_windows_of_the_reference_model(tmp_path: Path) -> None:
    model = ServiceConfig().model
    assert window_samples(ServiceConfig()) == window_samples(config_of(write(tmp_path))) > 0
    assert window_samples(ServiceConfig()) == model.audio_frame * model.audio_window


@pytest.mark.parametrize(
    ("counting", "model", "samples"),
    [
        (OMNI_2, {}, 200 * 160),
        (OMNI_2, {"audio_config": {"n_window": 7}}, 14 * 160),
        (OMNI_3, {}, 100 * 160),
        (OMNI_3, {"audio_config": {"n_window": 50, "n_window_infer": 800}}, 800 * 160),
        (OMNI_3, {"n_window": 50, "n_window_infer": 799}, 700 * 160),
    ],
)
def test_chunks_are_taken_whole(counting: Chunked, model: dict[str, Any], samples: int) -> None:
    assert counting.window(model, {}) == samples
    assert counting.window(model, {"hop_length": 320}) == 2 * samples


@pytest.mark.parametrize(
    ("counting", "frames", "count"),
    [(OMNI_2, 200, 50), (OMNI_2, 3, 1), (OMNI_2, 57, 14), (OMNI_3, 100, 13), (OMNI_3, 3, 1), (OMNI_3, 357, 47)],
)
def test_embeddings_of_a_window(counting: Chunked, frames: int, count: int) -> None:
    assert counting.count({}, mel(frames)) == count
    assert counting.frames(frames * 160, {}, {})[1] == max(10, frames)


def test_a_part_of_a_frame_counts_where_silence_follows() -> None:
    assert OMNI_2.frames(1601, {}, {}) == (1601 + 800, 11)
    assert OMNI_3.frames(1601, {}, {}) == (1601, 10)
    assert OMNI_3.frames(1, {}, {}) == (1600, 10)


def test_several_sounds_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="2 sounds"):
        Filled().count({}, mel(100, 2))


@pytest.mark.parametrize(
    "settings", [{"sampling_rate": 8000}, {"dither": 0.1}, {"feature_extractor_type": "Other"}], ids=str
)
def test_settings_that_are_not_followed_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    write(tmp_path, WHISPER, EXTRACTOR | settings)
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Checkpoint.open(tmp_path)


def test_settings_may_lie_in_those_of_the_whole_model(tmp_path: Path) -> None:
    (write(tmp_path, WHISPER) / "preprocessor_config.json").unlink()
    (tmp_path / "processor_config.json").write_text(json.dumps({"feature_extractor": EXTRACTOR}))
    assert Checkpoint.open(tmp_path).processors == {"audio": EXTRACTOR}


def test_a_checkpoint_of_sounds_needs_what_decodes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "find_spec", lambda name: object())
    config = config_of(write(tmp_path, WHISPER, EXTRACTOR))
    check_encoder(config)
    monkeypatch.setattr(checkpoint, "decoder_of", lambda modality: "")
    with pytest.raises(ConfigError, match=r"pip install '\.\[audio\]'"):
        check_encoder(config)


def test_a_model_that_also_speaks_says_how_it_hears(tmp_path: Path) -> None:
    heard = {"audio_config": {"n_window": 7}, "vision_config": {"spatial_merge_size": 4}}
    omni = {"architectures": ["Qwen2_5OmniForConditionalGeneration"], "thinker_config": heard, "talker_config": {}}
    folder = write(tmp_path, omni, EXTRACTOR | {"patch_size": 14})
    assert Checkpoint.open(folder).model == heard
    assert list(Checkpoint.open(folder).processors) == ["image", "video", "audio"]
    assert window_samples(config_of(folder)) == 14 * 160
