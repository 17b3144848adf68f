"""A service with a checkpoint says of a picture what Transformers alone says of it, bit for bit, and says it once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mmcached.cache.checkpoints.checkpoint import Checkpoint
from mmcached.cache.name_files import differences
from mmcached.cache.output_names import ROWS
from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from mmcached.gateway.processing.checkpoint_processor import CheckpointProcessor
from mmcached.gateway.processing.decoder_process import DecodedTensors
from mmcached.pictures.images import decode_image
from mmcached.pictures.processor import PictureProcessor
from mmcached.pictures.settings import PictureSettings
from mmcached.shm.store.codec import decode_record_frames
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError, InvalidRequest
from mmcached.wire.model_config import EncoderConfig
from mmcached.worker.encoders.checkpoint import CheckpointEncoder
from mmcached.worker.encoders.encoder import outputs_in
from mmcached.worker.encoders.tower import load_tower
from tests.hosts.transformers.checkpoints import OUTPUTS, PICTURES, PROCESSORS, alone, save

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
SERVED = ("clip", "dinov2", "qwen3_vl", "gemma3")
"""Families with which a service is started each time: one with each form of outputs."""


def config_of(folder: Path, **encoder: Any) -> ServiceConfig:
    return ServiceConfig(
        encoder=EncoderConfig(kind="hf", path=str(folder), **encoder),
        world_size=1,
        device="cpu",
        mm_processor_cache_gb=1 / 64,
        store_gb=1 / 64,
        mm_processor_workers=1,
    )


def record_of(folder: Path, file: bytes) -> tuple[dict[str, Any], int]:
    """Return the record of a picture and its embeddings, as a frontend makes them."""
    config = config_of(folder)
    picture = decode_image(file, PictureSettings.from_config(config))
    made = DecodedTensors(PictureProcessor(folder).tensors(picture))
    item = CheckpointProcessor(Checkpoint.open(folder), "").item(made)
    return decode_record_frames(item.encoded.frames(), tensors="torch"), item.num_embeds


@pytest.mark.parametrize("family", PROCESSORS)
def test_outputs_are_those_of_transformers_alone(tmp_path: Path, family: str) -> None:
    folder = save(family, tmp_path)
    encoder = CheckpointEncoder(config_of(folder).encoder, CPU)
    measured = encoder.measure()
    assert [output.name for output in measured.form.outputs] == OUTPUTS.get(family, ["embeddings"])
    for file in PICTURES:
        record, num_embeds = record_of(folder, file)
        outputs = encoder.encode(record, num_embeds)
        wanted = alone(folder, file)
        assert len(outputs) == len(wanted)
        assert all(torch.equal(one, other) for one, other in zip(outputs.values(), wanted, strict=True))
        assert 1 <= num_embeds <= Checkpoint.open(folder).max_embeds_per_item
        assert outputs_in(outputs, measured.form, num_embeds) is not None
        assert sum(tensor.nbytes for tensor in outputs.values()) <= num_embeds * measured.embedding_bytes


def test_only_the_vision_part_is_loaded(tmp_path: Path) -> None:
    model, _ = load_tower(Checkpoint.open(save("qwen3_vl", tmp_path)), "auto", CPU)
    assert {name.split(".")[0] for name, _ in model.named_parameters()} == {"visual"}


def test_what_outputs_depend_on_has_another_fingerprint(tmp_path: Path) -> None:
    folder = save("dinov2", tmp_path)
    plain = CheckpointEncoder(config_of(folder).encoder, CPU)
    again = CheckpointEncoder(config_of(folder).encoder, CPU)
    rounded = CheckpointEncoder(config_of(folder, dtype="bf16").encoder, CPU)
    model, _ = load_tower(Checkpoint.open(folder), "auto", CPU)
    model.layernorm.weight.add_(1.0)
    model.save_pretrained(folder)
    other = CheckpointEncoder(config_of(folder).encoder, CPU)
    assert plain.fingerprint == again.fingerprint
    assert len({encoder.fingerprint for encoder in (plain, rounded, other)}) == 3
    assert other.rows.keys() == ROWS.keys()
    torch.set_float32_matmul_precision("medium")
    torch.set_num_threads(2)
    try:
        elsewhere = CheckpointEncoder(config_of(folder).encoder, CPU)
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.set_num_threads(1)
    assert {part for part, _, _ in differences(other.rows, elsewhere.rows)} == {"precision.fp32", "threads"}
    assert elsewhere.fingerprint != other.fingerprint
    record, num_embeds = record_of(folder, PICTURES[0])
    assert {output.dtype for output in rounded.encode(record, num_embeds).values()} == {torch.bfloat16}


def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = save("dinov2", tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["layernorm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"layernorm\.weight"):
        CheckpointEncoder(config_of(folder).encoder, CPU)


@pytest.mark.parametrize(
    "family",
    [family if family in SERVED else pytest.param(family, marks=pytest.mark.soak) for family in PROCESSORS],
)
def test_a_service_says_the_same_and_encodes_once(run_dir: Path, tmp_path: Path, family: str) -> None:
    folder = save(family, tmp_path / "checkpoint")
    names = OUTPUTS.get(family, ["embeddings"])
    with ChildService(run_dir, config_of(folder), tmp_path / "config.json"), Client(run_dir) as client:
        before = client.stats().engines[0].workers[0].items_encoded
        for _ in range(2):
            for file, outputs in zip(PICTURES, client.encode(PICTURES), strict=True):
                named = outputs if isinstance(outputs, dict) else {names[0]: outputs}
                assert list(named) == names
                wanted = alone(folder, file)
                assert all(torch.equal(one, other) for one, other in zip(named.values(), wanted, strict=True))
        assert client.stats().engines[0].workers[0].items_encoded - before == len(PICTURES)
        assert [output.name for output in client.processor_info().outputs] == names
        with pytest.raises(InvalidRequest):
            client.generate("What is this? <image>", PICTURES[:1])


def test_the_demo_runs_a_checkpoint_once_per_photograph(tmp_path: Path) -> None:
    folder = save("qwen3_vl", tmp_path / "checkpoint")
    (tmp_path / "photos").mkdir()
    for number, file in enumerate(PICTURES):
        (tmp_path / "photos" / f"{number}.png").write_bytes(file)
    asked = ["--encoder", str(folder), "--images", str(tmp_path / "photos"), "--workers", "1", "--device", "cpu"]
    ended = subprocess.run(
        [sys.executable, "-m", "mmcached", "demo", *asked], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "deepstack_1 float32 n x 64" in ended.stdout
    rows = [re.findall(r"[\w.]+", line) for line in ended.stdout.splitlines() if "first" in line or "second" in line]
    assert [row[:4] for row in rows[:2]] == [["first", "9", "9", "0"], ["second", "0", "0", "9"]]
    assert "the same bits" in ended.stdout
