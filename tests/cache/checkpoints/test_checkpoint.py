"""What a checkpoint's small files say, and what is refused before anything is started."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mmcached.cache.checkpoints import checkpoint
from mmcached.cache.checkpoints.checkpoint import Checkpoint, check_encoder, checkpoint_of, max_embeds_per_item
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError
from mmcached.wire.model_config import EncoderConfig, ModelConfig
from tests.cache.checkpoints.folders import CLIP, CROPPED, config_of, write


def test_a_service_has_the_reference_encoder_unless_it_is_told() -> None:
    assert checkpoint_of(ServiceConfig()) is None
    sizes = (ModelConfig(max_patches_per_image=7, audio_window=5), ModelConfig(max_patches_per_image=5, audio_window=7))
    assert [max_embeds_per_item(ServiceConfig(model=model)) for model in sizes] == [7, 7]
    check_encoder(ServiceConfig())


def test_the_largest_item_follows_from_configuration_and_processor(tmp_path: Path) -> None:
    assert max_embeds_per_item(config_of(write(tmp_path))) == 4 * 4 + 1


def test_a_processor_may_lie_in_that_of_the_whole_model(tmp_path: Path) -> None:
    (write(tmp_path) / "preprocessor_config.json").unlink()
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": CROPPED, "patch_size": 14}))
    assert Checkpoint.open(tmp_path).processors == {"image": CROPPED}


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "not JSON"),
        (lambda folder: (folder / "config.json").write_text('{"x": ' + "[" * 50_000), "not JSON"),
        (lambda folder: (folder / "config.json").write_text("[]"), "not a JSON object"),
        (lambda folder: (folder / "config.json").write_text("{}"), "no architecture"),
        (lambda folder: write(folder, CLIP | {"architectures": ["OtherModel"]}), "OtherModel"),
        (lambda folder: (folder / "model.safetensors").unlink(), "safetensors"),
        (lambda folder: (folder / "preprocessor_config.json").unlink(), "image processor"),
    ],
)
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, spoil: Callable[[Path], object], reason: str) -> None:
    spoil(write(tmp_path))
    with pytest.raises(ConfigError, match=reason) as caught:
        check_encoder(config_of(tmp_path))
    assert caught.value.details["field"] == "encoder.path"


def test_a_package_that_is_missing_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(write(tmp_path))
    monkeypatch.setattr(checkpoint, "find_spec", lambda name: None if name == "transformers" else object())
    with pytest.raises(ConfigError, match=r"needs transformers, not installed: pip install '\.\[hf\]'"):
        check_encoder(config)
    monkeypatch.setattr(checkpoint, "find_spec", lambda name: object())
    check_encoder(config)


def test_only_towers_with_tiles_cache_them(tmp_path: Path) -> None:
    encoder = EncoderConfig(kind="hf", path=str(write(tmp_path / "clip")), caches_tiles=True)
    with pytest.raises(ConfigError, match=r"CLIPVisionModel: only .*SmolVLMForConditionalGeneration") as caught:
        checkpoint_of(ServiceConfig(encoder=encoder))
    assert caught.value.details["field"] == "encoder.caches_tiles"
    with pytest.raises(ConfigError, match=r"encoder\.caches_tiles.*kind is reference"):
        check_encoder(ServiceConfig(encoder=EncoderConfig(caches_tiles=True)))
    model = {"architectures": ["SmolVLMForConditionalGeneration"]}
    encoder = EncoderConfig(kind="hf", path=str(write(tmp_path / "smolvlm", model)), caches_tiles=True)
    for settings in ({}, {"model": ModelConfig(kind="hf")}):
        found = checkpoint_of(ServiceConfig(encoder=encoder, **settings))  # type: ignore[arg-type]
        assert found is not None
        assert found.has_tiles


def test_settings_that_cannot_be_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        check_encoder(ServiceConfig(encoder=EncoderConfig(kind="hf")))
    assert caught.value.details["field"] == "encoder.path"
    with pytest.raises(ConfigError) as caught:
        ServiceConfig(encoder=EncoderConfig(device="tpu"))
    assert caught.value.details["field"] == "encoder.device"


def test_encoders_on_a_ray_cluster_are_asked_for_as_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("ray", ":1", "host:", "host:x", "host:70000"):
        with pytest.raises(ConfigError) as caught:
            ServiceConfig(encoder=EncoderConfig(ray_address=address))
        assert caught.value.details["field"] == "encoder.ray_address"
    with pytest.raises(ConfigError, match="must be below step_timeout_s"):
        ServiceConfig(encoder=EncoderConfig(ray_address="auto"), step_timeout_s=10.0)
    config = ServiceConfig(encoder=EncoderConfig(ray_address="10.0.0.1:6379"))
    monkeypatch.setattr(checkpoint, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs ray, not installed: pip install '\.\[ray\]'"):
        check_encoder(config)
