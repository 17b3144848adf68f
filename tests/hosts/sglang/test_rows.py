"""Each row of the table of `output_names` in SGLang: another value, another name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmcached.cache.name_files import differences, known_names
from mmcached.cache.output_names import EXACT, ROWS
from mmcached.client import Client
from mmcached.integrations.sglang import identity
from mmcached.integrations.sglang.identity import namespace
from mmcached.integrations.sglang.settings import EMBEDDING_STORE, ENGINE_CACHE, SglangSettings
from mmcached.worker.encoders.computing import computing_rows

Patch = pytest.MonkeyPatch
ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "model": [{"json_model_override_args": '{"vision_start_token_id": 1}'}, {"trust_remote_code": True}],
    "processor": [
        {"mm_process_config": {"image": {"max_pixels": 4096}}},
        {"image_processor_backend": "pil"},
        {"disable_fast_image_processor": True},
    ],
    "dtype": [{"dtype": "bfloat16"}],
    "attention": [{"mm_attention_backend": "sdpa"}],
    "precision": [{"enable_precise_embedding_interpolation": True}],
    "quantization": [{"quantization": "fp8"}],
    "ranks": [{"mm_enable_dp_encoder": True}],
}
"""Arguments of SGLang's command line, by the row that they change."""
CONSTANT = {"code", "threads", "adapters", "batching"}


@pytest.fixture
def name(environment: None, published: Callable[..., None]) -> Iterator[Callable[..., str]]:
    """Return the name of an engine with some arguments."""
    with Client(os.environ["MMCACHED_RUN_DIR"]) as client:

        def make(room: str = ENGINE_CACHE, tower: str | None = "tower", **changed: Any) -> str:
            published(**({"dtype": "float32"} | changed))
            return namespace(room, SglangSettings.read(), client, tower=tower)

        yield make


def parts(run_dir: str, *names: str) -> set[str]:
    rows = known_names(Path(run_dir))
    return {part.partition(".")[0] for part, _, _ in differences(*(rows[each] for each in names))}


@pytest.mark.parametrize(
    ("row", "changed"),
    [pytest.param(row, each, id=f"{row} {next(iter(each))}") for row, some in ARGUMENTS.items() for each in some],
)
def test_an_argument_changes_the_row_that_it_belongs_to(
    name: Callable[..., str], row: str, changed: dict[str, Any]
) -> None:
    before, after = name(), name(**changed)
    assert before != after
    assert row in parts(os.environ["MMCACHED_RUN_DIR"], before, after)


def other_packages(patch: Patch) -> None:
    patch.setattr(identity, "PACKAGES", ("torch",))


def compiled(patch: Patch) -> None:
    arguments = identity._server_arguments
    patch.setattr(identity, "_server_arguments", lambda: arguments() | {"enable_torch_compile": True})


def other_device(patch: Patch) -> None:
    properties = SimpleNamespace(name="NVIDIA H100", major=9, minor=0, multi_processor_count=132)
    place = "mmcached.integrations.sglang.identity.computing_rows"
    patch.setattr(place, lambda *given: computing_rows(*given) | {"device": vars(properties)})


AROUND: dict[str, Callable[[Patch], None]] = {
    "libraries": other_packages,
    "variables": lambda patch: patch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
    "device": other_device,
    "compilation": compiled,
    "precision": lambda patch: patch.setattr(torch.backends.mkldnn, "deterministic", True),
}


@pytest.mark.parametrize("row", AROUND)
def test_what_surrounds_an_engine_changes_its_row(name: Callable[..., str], monkeypatch: Patch, row: str) -> None:
    before = name()
    with monkeypatch.context() as patch:
        AROUND[row](patch)
        after = name()
    assert before != after
    assert parts(os.environ["MMCACHED_RUN_DIR"], before, after) == {row}


def test_weights_and_host_are_rows(name: Callable[..., str]) -> None:
    before = name()
    run_dir = os.environ["MMCACHED_RUN_DIR"]
    assert parts(run_dir, before, name(tower="another")) == {"weights"}
    assert parts(run_dir, before, name(room=EMBEDDING_STORE)) == {"host"}
    assert parts(run_dir, before, name(tower=None)) == {"weights", "model"}, "of the checkpoint's files"


def test_every_row_is_tried_or_cannot_differ(name: Callable[..., str]) -> None:
    assert {*ARGUMENTS, *AROUND, *CONSTANT, "host", "weights"} == ROWS.keys()
    own = name()
    rows = known_names(Path(os.environ["MMCACHED_RUN_DIR"]))[own]
    assert {row: rows[row] for row in CONSTANT} == dict.fromkeys(CONSTANT) | {"batching": "any"}
    assert rows["batching"] not in EXACT
