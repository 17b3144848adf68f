"""A checkpoint is named by its content alone; a host reads it once."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmcached.cache.fingerprints import fingerprint
from mmcached.client import Client
from mmcached.integrations.identity import SUFFIXES, checkpoint_folder, checkpoint_identity
from tests.client.services import StoreService


def later() -> float:
    """Return a time at which what has just been written is settled."""
    return time.time() + 60


@pytest.fixture
def client(run_dir: Path) -> Iterator[Client]:
    with StoreService(run_dir), Client(run_dir, fail_open=False) as client:
        yield client


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "vision").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(os.urandom(1 << 20))
    (folder / "vision" / "extra.safetensors").write_bytes(b"tower")
    return folder


def test_place_and_names_around_it_do_not_matter(client: Client, checkpoint: Path, tmp_path: Path) -> None:
    before = checkpoint_identity(checkpoint, client)
    (checkpoint / "README.md").write_text("not part of it")
    (checkpoint / ".cache").mkdir()
    (checkpoint / ".cache" / "lock.json").write_text("nor is this")
    moved = tmp_path / "elsewhere"
    shutil.copytree(checkpoint, moved)
    linked = tmp_path / "snapshot"
    linked.mkdir()
    for entry in checkpoint.iterdir():
        (linked / entry.name).symlink_to(entry)
    assert {checkpoint_identity(place, client) for place in (checkpoint, moved, str(linked))} == {before}
    assert len(before) == 64


def test_a_caller_says_which_files_matter(client: Client, checkpoint: Path) -> None:
    before, all_before = (checkpoint_identity(checkpoint, client, suffixes=files) for files in ({".json"}, SUFFIXES))
    (checkpoint / "model.safetensors").write_bytes(b"trained on")
    assert checkpoint_identity(checkpoint, client, suffixes={".json"}) == before
    assert checkpoint_identity(checkpoint, client) != all_before
    with pytest.raises(FileNotFoundError, match="\\.txt"):
        checkpoint_identity(checkpoint, client, suffixes={".txt"})


@pytest.mark.parametrize("position", [0, (1 << 20) - 1])
def test_every_byte_of_the_weights_matters(client: Client, checkpoint: Path, position: int) -> None:
    before = checkpoint_identity(checkpoint, client, clock=later)
    with (checkpoint / "model.safetensors").open("r+b") as weights:
        weights.seek(position)
        byte = weights.read(1)[0]
        weights.seek(position)
        weights.write(bytes([byte ^ 1]))
    assert checkpoint_identity(checkpoint, client, clock=later) != before


def test_names_of_files_matter(client: Client, checkpoint: Path) -> None:
    before = checkpoint_identity(checkpoint, client)
    (checkpoint / "config.json").rename(checkpoint / "other.json")
    assert checkpoint_identity(checkpoint, client) != before


def test_a_settled_file_is_read_once(client: Client, checkpoint: Path) -> None:
    first = checkpoint_identity(checkpoint, client, clock=later)
    assert client.store_counters().computed == 3
    assert checkpoint_identity(checkpoint, client, clock=later) == first
    assert client.store_counters().computed == 3


def test_a_file_that_has_just_changed_is_not_remembered(client: Client, checkpoint: Path) -> None:
    checkpoint_identity(checkpoint, client, clock=lambda: os.stat(checkpoint / "config.json").st_ctime)
    assert client.store_counters().computed == 0


def test_a_service_that_is_not_there_changes_nothing(client: Client, checkpoint: Path, tmp_path: Path) -> None:
    with Client(tmp_path / "nobody", timeout_s=0.1, connect_timeout_s=0.1) as alone:
        assert checkpoint_identity(checkpoint, alone, clock=later) == checkpoint_identity(checkpoint, client)


def test_one_file_may_be_the_checkpoint(client: Client, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"weights")
    shutil.copy(tmp_path / "a.gguf", tmp_path / "b.gguf")
    assert checkpoint_identity(tmp_path / "a.gguf", client) == checkpoint_identity(tmp_path / "b.gguf", client)


def test_what_is_no_checkpoint_is_said(client: Client, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no file of a checkpoint"):
        checkpoint_identity(tmp_path, client)
    with pytest.raises(FileNotFoundError):
        checkpoint_identity("organisation/model", client)


def test_a_fingerprint_has_all_parts_in_any_order() -> None:
    parts = {"dtype": "bfloat16", "vision": {"depth": 2, "width": [1, 2]}, "revision": None}
    name = fingerprint(parts)
    assert len(name) == 32
    assert fingerprint(dict(reversed(parts.items()))) == name
    assert fingerprint(parts | {"dtype": "float16"}) != name
    assert fingerprint(parts | {"vision": {"depth": 2, "width": [1, 3]}}) != name
    assert fingerprint(parts | {"more": 0}) != name


def test_a_fingerprint_of_what_has_no_one_spelling_is_refused() -> None:
    with pytest.raises(TypeError):
        fingerprint({"dtype": object()})
    with pytest.raises(ValueError, match="JSON"):
        fingerprint({"scale": float("nan")})


def test_a_path_is_its_own_folder(checkpoint: Path) -> None:
    assert checkpoint_folder(str(checkpoint)) == checkpoint
