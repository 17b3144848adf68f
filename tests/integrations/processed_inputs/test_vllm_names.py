"""What vLLM's processed items depend on beside their content is in their name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmcached.cache.fingerprints import fingerprint
from mmcached.client import Client
from mmcached.integrations.processed_inputs import vllm_names
from mmcached.integrations.processed_inputs.vllm_names import processor_parts
from mmcached.wire.paths import RunDir


class Engine:
    """vLLM's model configuration, as far as it is read."""

    def __init__(self, folder: Path) -> None:
        self.model = self.tokenizer = str(folder)
        self.revision = self.tokenizer_revision = None
        self.dtype = "bfloat16"
        self.architecture, self.max_model_len = "Qwen2_5_VLForConditionalGeneration", 2048
        self.config: dict[str, Any] = {"vision_config": {"patch_size": 14}}
        self.hf_config = SimpleNamespace(to_dict=lambda: self.config)
        self.multimodal_config = SimpleNamespace(
            limit_per_prompt=None,
            mm_processor_kwargs=None,
            media_io_kwargs=None,
            mm_device_do_normalize=True,
            mm_processor_cache_gb=4.0,
            video_pruning_rate=None,
            video_pruning_method="evs",
        )


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "preprocessor_config.json").write_text('{"image_processor_type": "CLIPImageProcessor"}')
    return Engine(tmp_path / "m")


@pytest.fixture
def client(run_dir: Path) -> Iterator[Client]:
    RunDir(run_dir).create()
    with Client(run_dir, connect_timeout_s=0.01) as client:
        yield client


def set_argument(name: str, value: Any) -> Callable[[Engine, pytest.MonkeyPatch], None]:
    return lambda engine, patch: setattr(engine.multimodal_config, name, value)


def set_model(name: str, value: Any) -> Callable[[Engine, pytest.MonkeyPatch], None]:
    return lambda engine, patch: setattr(engine, name, value)


def other_version(engine: Engine, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(vllm_names, "package_versions", lambda names: dict.fromkeys(names, "0"))


def other_files(engine: Engine, patch: pytest.MonkeyPatch) -> None:
    (Path(engine.model) / "preprocessor_config.json").write_text('{"image_processor_type": "CLIPImageProcessorFast"}')


def other_config(engine: Engine, patch: pytest.MonkeyPatch) -> None:
    engine.config = {"vision_config": {"patch_size": 28}}


def other_dtype(engine: Engine, patch: pytest.MonkeyPatch) -> None:
    engine.dtype = "float16"


def other_variable(engine: Engine, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("VLLM_VIDEO_LOADER_BACKEND", "opencv_dynamic")


DRIFT: dict[str, Callable[[Engine, pytest.MonkeyPatch], None]] = {
    "versions": other_version,
    "options of the processor, and its backend in its files": other_files,
    "configuration": other_config,
    "variables": other_variable,
    "mm_processor_kwargs": set_argument("mm_processor_kwargs", {"max_pixels": 1024}),
    "backend in mm_processor_kwargs": set_argument("mm_processor_kwargs", {"use_fast": False}),
    "media_io_kwargs": set_argument("media_io_kwargs", {"video": {"num_frames": 4}}),
    "pruning": set_argument("video_pruning_rate", 0.5),
    "method of pruning": set_argument("video_pruning_method", "vidcom2"),
    "pixels are normalised on the device": set_argument("mm_device_do_normalize", False),
    "a setting of a later vLLM": set_argument("another", 1),
    "dtype": other_dtype,
    "the processor of another implementation": set_model("model_impl", "transformers"),
    "code of the checkpoint": set_model("trust_remote_code", True),
    "tokenizer": set_model("tokenizer_mode", "mistral"),
}
SAME: dict[str, Callable[[Engine, pytest.MonkeyPatch], None]] = {
    "size of a cache": set_argument("mm_processor_cache_gb", 1.0),
    "context": set_model("max_model_len", 4096),
}


@pytest.mark.parametrize("drift", DRIFT)
def test_items_of_another_processor_have_another_name(
    engine: Engine, client: Client, monkeypatch: pytest.MonkeyPatch, drift: str
) -> None:
    before = fingerprint(processor_parts(engine, client))
    assert fingerprint(processor_parts(engine, client)) == before
    DRIFT[drift](engine, monkeypatch)
    assert fingerprint(processor_parts(engine, client)) != before


@pytest.mark.parametrize("same", SAME)
def test_items_of_the_same_processor_have_one_name(
    engine: Engine, client: Client, monkeypatch: pytest.MonkeyPatch, same: str
) -> None:
    before = fingerprint(processor_parts(engine, client))
    SAME[same](engine, monkeypatch)
    assert fingerprint(processor_parts(engine, client)) == before


def test_the_context_counts_where_a_processor_limits_items_to_it(engine: Engine, client: Client) -> None:
    names = []
    for engine.architecture in ("Qwen2_5_VLForConditionalGeneration", "NemotronH_Nano_VL_V2"):
        for engine.max_model_len in (2048, 4096):
            names.append(fingerprint(processor_parts(engine, client)))
    assert len(set(names)) == 3
