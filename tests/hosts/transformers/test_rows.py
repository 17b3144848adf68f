"""Each row of `output_names.ROWS`, in the service, its encoders on Ray, and in Transformers: another value, another
name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from mmcached.cache.checkpoints.checkpoint import Checkpoint
from mmcached.cache.name_files import differences, read_name
from mmcached.cache.output_names import EXACT, ROWS, output_name
from mmcached.cli.ray.placed_config import PlacedConfig
from mmcached.client import Client
from mmcached.integrations.ray.encoder_actor import EncoderActor
from mmcached.integrations.transformers import cached_image_features
from mmcached.wire.config import ServiceConfig
from mmcached.wire.model_config import EncoderConfig, ModelConfig
from mmcached.worker.encoders import computing
from mmcached.worker.encoders.actor_table import Report
from mmcached.worker.encoders.checkpoint import CheckpointEncoder
from mmcached.worker.encoders.tower import load_tower
from tests.hosts.transformers import models
from tests.hosts.transformers.checkpoints import save

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
Patch = pytest.MonkeyPatch
CONSTANT = {"host", "processor", "ranks", "compilation", "quantization", "adapters", "batching"}
"""Rows that have one value in each of these hosts: the key has the processor, the others are refused or bypassed."""


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def products(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def of_another_processor(patch: Patch) -> None:
    patch.setattr(computing, "kind_of_cpu", lambda text: {"vendor": "another", "instructions": []})
    computing.cpu_row.cache_clear()


def of_other_packages(patch: Patch) -> None:
    patch.setattr(computing, "package_versions", lambda names: dict.fromkeys(names, "0"))
    computing._versions.cache_clear()


@pytest.fixture(autouse=True)
def read_once(monkeypatch: Patch) -> Iterator[None]:
    """Forget what a test has pretended of this process."""
    yield
    monkeypatch.undo()
    computing.cpu_row.cache_clear()
    computing._versions.cache_clear()


AROUND: dict[str, Callable[[Patch], AbstractContextManager[None] | None]] = {
    "device": of_another_processor,
    "libraries": of_other_packages,
    "variables": lambda patch: patch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2"),
    "precision": lambda patch: products("medium"),
    "threads": lambda patch: threads(2),
    "dtype": lambda patch: torch.autocast("cpu", torch.bfloat16),
}
"""Changes of the process, by the row that they change."""


def changes(row: str, patch: Patch) -> AbstractContextManager[Any]:
    return (AROUND[row](patch) if row in AROUND else None) or nullcontext()


# ---- the service, and its encoders on Ray


Named = tuple[str, Mapping[str, Any]]
"""The name of an encoder's outputs, and its rows."""


def named_in_the_worker(folder: Path, *, is_for_prompts: bool = False) -> Named:
    encoder = CheckpointEncoder(EncoderConfig(kind="hf", path=str(folder)), CPU, is_for_prompts=is_for_prompts)
    return encoder.fingerprint, encoder.rows


def named_by_an_actor(folder: Path, *, is_for_prompts: bool = False) -> Named:
    """Return what an actor that `mmcached ray up` starts reports to the workers, which name outputs by it."""
    model = ModelConfig(kind="hf", path=str(folder)) if is_for_prompts else ModelConfig()
    service = ServiceConfig(model=model, encoder=EncoderConfig(kind="hf", path=str(folder)), device="cpu")
    actor = EncoderActor(PlacedConfig(serve=service).encoder_fields())
    report = msgspec.msgpack.decode(asyncio.run(actor.describe()), type=Report)
    assert report.rows is not None
    return report.fingerprint, report.rows


def rewritten(folder: Path, change: Callable[[Any], Any]) -> Path:
    model, _ = load_tower(Checkpoint.open(folder), "auto", CPU)
    with torch.no_grad():
        change(model)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("named", [named_in_the_worker, named_by_an_actor])
@pytest.mark.parametrize("row", sorted(ROWS.keys() - CONSTANT))
def test_the_service_names_an_output_by_each_row(
    tmp_path: Path, monkeypatch: Patch, row: str, named: Callable[..., Named]
) -> None:
    folder = save("qwen3_vl" if row == "code" else "dinov2", tmp_path)
    name, before = named(folder)
    settings: dict[str, Any] = {}
    if row == "weights":
        rewritten(folder, lambda model: model.layernorm.weight.add_(1.0))
    elif row == "model":
        rewritten(folder, lambda model: setattr(model.config, "layer_norm_eps", 1e-3))
    elif row == "code":
        settings["is_for_prompts"] = True
    elif row == "attention":

        def load_eager(*values: Any) -> Any:
            model, families = load_tower(*values)
            model.set_attn_implementation("eager")
            return model, families

        monkeypatch.setattr("mmcached.worker.encoders.checkpoint.load_tower", load_eager)
    with changes(row, monkeypatch):
        other, after = named(folder, **settings)
    assert row in {part.partition(".")[0] for part, _, _ in differences(before, after)}
    assert other == output_name(after) != name


def test_an_actor_names_outputs_as_a_worker_does(tmp_path: Path) -> None:
    folder = save("dinov2", tmp_path)
    assert named_by_an_actor(folder) == named_in_the_worker(folder)


def test_the_rows_that_cannot_differ_in_a_service_have_one_value(tmp_path: Path) -> None:
    _, rows = named_in_the_worker(save("dinov2", tmp_path))
    assert {row: rows[row] for row in CONSTANT} == dict.fromkeys(CONSTANT) | {"host": "service", "batching": "alone"}
    assert rows["batching"] in EXACT


# ---- Transformers


def rows_of(client: Client, model: Any) -> tuple[str | None, dict[str, Any]]:
    with cached_image_features(model, client) as features:
        name = features.fingerprint(CPU)
    return name, (name and read_name(client.run_dir, name)) or {}


@pytest.mark.parametrize("row", sorted(ROWS.keys() - CONSTANT))
def test_transformers_names_features_by_each_row(client: Client, monkeypatch: Patch, row: str) -> None:
    model, _ = models.make("llava")
    name, before = rows_of(client, model)
    vision = model.model.vision_tower
    if row == "weights":
        with torch.no_grad():
            next(vision.parameters()).add_(1.0)
    elif row == "model":
        model.config.vision_feature_layer = -1
    elif row == "code":
        monkeypatch.setattr(vision.encoder.layers[0].layer_norm1, "eps", 1e-3)
    elif row == "attention":
        model.set_attn_implementation("eager")
    with changes(row, monkeypatch):
        other, after = rows_of(client, model)
    assert other not in (None, name)
    assert row in {part.partition(".")[0] for part, _, _ in differences(before, after)}


def test_the_rows_that_cannot_differ_in_transformers_have_one_value(client: Client) -> None:
    _, rows = rows_of(client, models.make("llava")[0])
    assert rows.keys() == ROWS.keys()
    wanted = dict.fromkeys(CONSTANT) | {"host": "transformers", "batching": "alone"}
    assert {row: rows[row] for row in CONSTANT} == wanted
