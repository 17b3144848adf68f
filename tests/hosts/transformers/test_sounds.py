"""A window of a sound has the outputs that Transformers gives for that window alone, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers
from transformers.models.whisper import feature_extraction_whisper

from mmcached.cache.checkpoints.checkpoint import Checkpoint, window_samples
from mmcached.gateway.processing.mel import log_mel
from mmcached.wire.model_config import EncoderConfig
from mmcached.worker.encoders.checkpoint import CheckpointEncoder
from mmcached.worker.encoders.encoder import outputs_in
from mmcached.worker.encoders.tower import load_tower
from tests.cache.checkpoints.folders import config_of
from tests.hosts.transformers.checkpoints import save
from tests.hosts.transformers.test_clips import DTYPES, Dtype, loaded, record_of

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def sound(num_samples: int, seed: int = 3) -> npt.NDArray[np.float32]:
    """Return a chord with some noise."""
    seconds = np.arange(num_samples) / 16_000
    tones = sum(np.sin(2 * np.pi * hertz * seconds) for hertz in (220, 277, 1760)) / 8
    return np.asarray(tones + np.random.default_rng(seed).normal(0, 0.01, num_samples), np.float32)


def extractor_of(folder: Path) -> Any:
    return transformers.WhisperFeatureExtractor.from_pretrained(folder)


@pytest.mark.parametrize("num_bands", [80, 128])
@pytest.mark.parametrize("num_samples", [480, 16_000, 80_123])
def test_the_spectrogram_is_that_of_the_extractor(
    num_bands: int, num_samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = sound(num_samples)
    found = log_mel(samples, num_bands=num_bands, n_fft=400, hop=160)

    def wanted() -> Any:
        extractor = transformers.WhisperFeatureExtractor(feature_size=num_bands)
        asked = {"sampling_rate": 16_000, "padding": "longest", "return_tensors": "np"}
        return extractor(samples, **asked)["input_features"][0]

    # Where torch is installed, the extractor computes with it, in 32 bits.
    assert np.allclose(found, wanted(), rtol=0, atol=1e-4)
    monkeypatch.setattr(feature_extraction_whisper, "is_torch_available", lambda: False)
    assert np.array_equal(found, wanted())


@pytest.mark.parametrize("dtype", DTYPES)
def test_outputs_of_a_window_are_those_of_whisper(tmp_path: Path, dtype: Dtype) -> None:
    folder = save("whisper", tmp_path)
    encoder = CheckpointEncoder(EncoderConfig(kind="hf", path=str(folder), dtype=dtype), CPU)
    measured = encoder.measure()
    assert [each.name for each in measured.form.outputs] == ["last_hidden_state"]
    assert window_samples(config_of(folder)) == 16_000
    model = loaded(folder, DTYPES[dtype]).get_encoder()
    for num_samples in (16_000, 5_001, 1):
        samples = sound(num_samples)
        record, num_embeds = record_of(folder, samples=samples)
        features = extractor_of(folder)(samples, sampling_rate=16_000, return_tensors="pt")["input_features"]
        assert torch.allclose(record["input_features"], features, rtol=0, atol=1e-4)
        outputs = encoder.encode(record, num_embeds)
        with torch.no_grad():
            wanted = model(record["input_features"].to(model.dtype)).last_hidden_state[0]
        assert torch.equal(outputs["last_hidden_state"], wanted)
        assert num_embeds == Checkpoint.open(folder).max_embeds_per_item == 50
        assert outputs_in(outputs, measured.form, num_embeds) is not None


def test_only_the_encoder_is_loaded(tmp_path: Path) -> None:
    model, families = load_tower(Checkpoint.open(save("whisper", tmp_path)), "auto", CPU)
    assert list(families) == ["audio"]
    assert type(model).__name__ == "WhisperEncoder"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["qwen2_5_omni", "qwen3_omni"])
def test_outputs_of_a_window_are_those_of_qwen(tmp_path: Path, family: str, dtype: Dtype) -> None:
    folder = save(family, tmp_path)
    encoder = CheckpointEncoder(EncoderConfig(kind="hf", path=str(folder), dtype=dtype), CPU)
    measured = encoder.measure()
    model = loaded(folder, DTYPES[dtype]).model
    window = window_samples(config_of(folder))
    for num_samples in (window, window // 2, 5_001, 1):
        samples = sound(num_samples)
        record, num_embeds = record_of(folder, samples=samples)
        features = extracted(folder, family, samples)
        assert torch.allclose(record["input_features"], features, rtol=0, atol=1e-4)
        outputs = encoder.encode(record, num_embeds)
        assert torch.equal(outputs["embeddings"], heard(model, record["input_features"]))
        assert 1 <= num_embeds <= Checkpoint.open(folder).max_embeds_per_item
        assert outputs_in(outputs, measured.form, num_embeds) is not None


def extracted(folder: Path, family: str, samples: npt.NDArray[np.float32]) -> torch.Tensor:
    """Return the spectrogram that the processor of the family makes of a sound, as far as it counts."""
    at_least = np.pad(samples, (0, max(0, 1600 - len(samples))))
    asked = {"truncation": False, "return_attention_mask": True, "return_tensors": "pt"}
    padding = "max_length" if family == "qwen2_5_omni" else "longest"
    made = extractor_of(folder)(at_least, sampling_rate=16_000, padding=padding, **asked)
    features: torch.Tensor = made["input_features"][:, :, made["attention_mask"][0].bool()]
    return features


def heard(model: Any, features: torch.Tensor) -> torch.Tensor:
    """Return what Transformers gives for one spectrogram, (1, num_bands, num_frames)."""
    mask = torch.ones(1, features.shape[-1], dtype=torch.long)
    with torch.no_grad():
        found = model.get_audio_features(features.to(model.dtype), feature_attention_mask=mask, return_dict=True)
    output: torch.Tensor = found.pooler_output
    return output


@pytest.mark.parametrize("family", ["qwen2_5_omni", "qwen3_omni"])
def test_a_window_depends_on_no_other(tmp_path: Path, family: str) -> None:
    """In a spectrogram of one length a window has the same bits, whatever the others say; alone all but rounding."""
    folder = save(family, tmp_path)
    model = loaded(folder).model
    width = window_samples(config_of(folder)) // 160
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(1, 80, 3 * width, generator=generator)
    other = torch.cat([torch.randn(1, 80, width, generator=generator), features[..., width:]], dim=-1)
    whole, changed = heard(model, features), heard(model, other)
    alone = [heard(model, part) for part in features.reshape(1, 80, 3, width).unbind(2)]
    rows = len(alone[0])
    assert torch.equal(whole[rows:], changed[rows:])
    assert not torch.equal(whole[:rows], changed[:rows])
    assert torch.allclose(torch.cat(alone), whole, rtol=0, atol=1e-6)
    inside = torch.cat([other[..., : width // 2], features[..., width // 2 :]], dim=-1)
    reached = heard(model, inside)[rows // 2 : rows]
    assert not torch.equal(reached, whole[rows // 2 : rows]), "inside of a window, what is cut off matters"


@pytest.mark.parametrize("family", ["qwen2_5_omni", "qwen3_omni"])
def test_of_a_model_that_also_speaks_the_part_that_hears_is_loaded(tmp_path: Path, family: str) -> None:
    from safetensors.torch import load_file, save_file

    folder = save(family, tmp_path)
    plain = CheckpointEncoder(config_of(folder).encoder, CPU)
    config = json.loads((folder / "config.json").read_text())
    kind = config["model_type"].removesuffix("_thinker")
    name = config["architectures"][0].replace("Thinker", "")
    config = {"architectures": [name], "model_type": kind, "thinker_config": config, "enable_audio_output": False}
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    weights = {f"thinker.{name}": value for name, value in weights.items()} | {"talker.x": torch.zeros(1)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    record, num_embeds = record_of(folder, samples=sound(8_000))
    found = CheckpointEncoder(config_of(folder).encoder, CPU).encode(record, num_embeds)["embeddings"]
    assert torch.equal(found, plain.encode(record, num_embeds)["embeddings"])
