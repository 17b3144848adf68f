"""With vLLM's own configurations: what decides an output's bits changes its name, in the row that the table has for it.

What is no setting comes from the workers' torch: `computing_rows` is theirs. `tests/worker/encoders/test_computing.py`
shows, where a CPU can, that such a change gives other bits, and `test_other_bits_have_other_names` with whole towers.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmcached.cache.output_names import PACKAGES, ROWS, output_name
from mmcached.cli.serve.child_service import ChildService
from mmcached.integrations.vllm.keys import Sharing, rows_of_engine
from mmcached.integrations.vllm.settings import ConnectorSettings
from mmcached.worker.encoders import computing
from mmcached.worker.encoders.computing import computing_rows
from tests.hosts.prompts import image, text
from tests.hosts.vllm.conftest import MakeCheckpoint
from tests.hosts.vllm.engines import EngineProcess, joined

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm import __version__
    from vllm.engine.arg_utils import EngineArgs

    from tests.hosts.vllm.engine_parts import TOWER

pytestmark = pytest.mark.filterwarnings("ignore")

GPU = {"name": "NVIDIA H100 80GB HBM3", "major": 9, "minor": 0, "multi_processor_count": 132}
FILES = {"checkpoint": "a digest", "scales": "another"}


def config(checkpoint: Path, **options: Any) -> Any:
    usual = {"dtype": "bfloat16", "max_model_len": 2048, "enforce_eager": True, "seed": 0}
    return EngineArgs(model=str(checkpoint), **(usual | options)).create_engine_config()


def rows(
    checkpoint: Path,
    *,
    tower: Mapping[str, Any] = TOWER,
    files: Mapping[str, str] = FILES,
    version: str = __version__,
    settings: Mapping[str, Any] = {},
    **options: Any,
) -> dict[str, Any]:
    return rows_of_engine(config(checkpoint, **options), ConnectorSettings(**settings), version, tower, files)


def different(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    assert one.keys() == other.keys() == ROWS.keys()
    found = [name for name in ROWS if one[name] != other[name]]
    assert (output_name(one) == output_name(other)) is not bool(found)
    return found


SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("model", {"hf_overrides": {"vision_config": {"depth": 3}}}),
    ("processor", {"mm_processor_kwargs": {"max_pixels": 12544}}),
    ("processor", {"media_io_kwargs": {"video": {"num_frames": 3}}}),
    ("processor", {"video_pruning_rate": 0.5}),
    ("processor", {"revision": "v2"}),
    ("processor", {"trust_remote_code": True}),
    ("processor", {"mm_device_do_normalize": False}),
    ("processor", {"files": FILES | {"checkpoint": "other processors"}}),
    ("code", {"version": "0.0.1"}),
    ("dtype", {"dtype": "float32"}),
    ("attention", {"mm_encoder_attn_backend": "TORCH_SDPA"}),
    ("attention", {"attention_config": {"flash_attn_version": 3}}),
    ("ranks", {"tensor_parallel_size": 2}),
    ("ranks", {"mm_encoder_tp_mode": "data"}),
    ("compilation", {"enforce_eager": False}),
    ("compilation", {"compilation_config": {"compile_mm_encoder": True}}),
    ("compilation", {"compilation_config": {"cudagraph_mm_encoder": True}}),
    ("compilation", {"kernel_config": {"linear_backend": "triton"}}),
    ("compilation", {"additional_config": {"of a platform": 1}}),
    ("quantization", {"quantization": "fp8"}),
    ("quantization", {"files": FILES | {"scales": "other scales"}}),
    ("weights", {"settings": {"weights_version": "step 7"}}),
]


@pytest.mark.parametrize(("row", "changes"), SETTINGS, ids=str)
def test_a_setting_changes_its_row(checkpoint: MakeCheckpoint, row: str, changes: dict[str, Any]) -> None:
    folder = checkpoint("qwen2_5_vl")
    assert row in different(rows(folder), rows(folder, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"enable_lora": True},
        {"pipeline_parallel_size": 2},
        {"limit_mm_per_prompt": {"image": 2}},
        {"max_num_batched_tokens": 4096},
        {"load_format": "dummy"},
        {"kv_cache_dtype": "fp8"},
        {"kernel_config": {"moe_backend": "triton"}},
        {"seed": 3},
    ],
    ids=str,
)
def test_a_setting_of_the_language_model_changes_nothing(checkpoint: MakeCheckpoint, changes: dict[str, Any]) -> None:
    assert different(rows(checkpoint("qwen2_5_vl")), rows(checkpoint("qwen2_5_vl"), **changes)) == []


def gpu(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> torch.device:
    module = SimpleNamespace(get_device_properties=lambda device: SimpleNamespace(**(GPU | changes)))
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    computing._properties.cache_clear()
    return torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("row", "changes"),
    [
        ("device", {"name": "NVIDIA A100-SXM4-80GB"}),
        ("device", {"major": 8}),
        ("device", {"multi_processor_count": 16}),
        ("variables", {"VLLM_BATCH_INVARIANT": "1"}),
        ("variables", {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}),
        ("variables", {"ATEN_CPU_CAPABILITY": "default"}),
        ("precision", {"deterministic": True}),
    ],
    ids=str,
)
def test_what_the_workers_compute_with_changes_its_row(
    checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch, row: str, changes: dict[str, Any]
) -> None:
    folder = checkpoint("qwen2_5_vl")
    before = rows(folder, tower=TOWER | computing_rows(gpu(monkeypatch), PACKAGES))
    if row == "variables":
        for name, value in changes.items():
            monkeypatch.setenv(name, value)
    if row == "precision":
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    device = gpu(monkeypatch, **changes if row == "device" else {})
    found = different(before, rows(folder, tower=TOWER | computing_rows(device, PACKAGES)))
    assert found == ([row, "batching"] if "VLLM_BATCH_INVARIANT" in changes else [row])


@pytest.mark.parametrize("package", ["vllm", "torch", "transformers", "pillow"])
def test_another_version_of_a_package_changes_its_row(
    checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    folder, cpu = checkpoint("qwen2_5_vl"), torch.device("cpu")
    before = rows(folder, tower=TOWER | computing_rows(cpu, PACKAGES))
    versions = dict(computing._versions(PACKAGES)) | {package: "0.0.1"}
    monkeypatch.setattr(computing, "_versions", lambda packages: versions)
    assert different(before, rows(folder, tower=TOWER | computing_rows(cpu, PACKAGES))) == ["libraries"]


def test_an_engine_with_adapters_on_its_tower_has_no_names(checkpoint: MakeCheckpoint) -> None:
    item = SimpleNamespace(identifier="1" * 64, mm_hash="1" * 64, modality="image")
    shares = [
        Sharing.of(config(checkpoint("qwen2_5_vl"), **options), ConnectorSettings()).may_share(item)
        for options in ({}, {"enable_lora": True}, {"enable_lora": True, "enable_tower_connector_lora": True})
    ]
    assert shares == [True, True, False]


def test_threads_are_in_no_name_because_a_cpu_is_never_exact(
    checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    found = rows(checkpoint("qwen2_5_vl"), tower=TOWER | computing_rows(torch.device("cpu"), PACKAGES))
    assert (found["threads"], found["batching"]) == (None, "any")


def tower_of(
    checkpoint: Path, store: ChildService, log: Path, options: dict[str, Any], variables: Mapping[str, str]
) -> tuple[str, list[str]]:
    """Return an engine's name of outputs, and the bits of its tower's outputs for one image."""
    with EngineProcess(checkpoint, log, joined(store.run_dir) | options, variables) as engine:
        bits = engine.do("ask", messages=[[image(1, side=224), text("What?")]])["bits"]
        return engine.do("prefix"), sorted(bits.values())


@pytest.mark.soak
def test_other_bits_have_other_names(checkpoint: MakeCheckpoint, store: ChildService, tmp_path: Path) -> None:
    """The weights do so in `test_play`; a GPU's rows, and those of compilers, need more than a CPU."""
    changes: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({}, {}),
        ({"dtype": "bfloat16"}, {}),
        ({"mm_processor_kwargs": {"max_pixels": 12544}}, {}),
        ({}, {"ATEN_CPU_CAPABILITY": "avx2"}),
        ({"packs": True}, {}),
    ]
    folder, log = checkpoint("qwen2_5_vl"), tmp_path / "engine.log"
    found = [tower_of(folder, store, log, *change) for change in changes]
    assert found[0] == tower_of(folder, store, log, {}, {})
    assert all(name for name, _ in found)
    assert all(len({str(each[part]) for each in found}) == len(changes) for part in (0, 1)), found


def test_each_row_is_tested() -> None:
    of_torch = {"device", "variables", "precision", "libraries", "batching", "threads", "adapters"}
    assert {row for row, _ in SETTINGS} | of_torch | {"host"} == ROWS.keys()
