"""A vLLM server that started before its service, and never finds the one it needs: it answers as if it were alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mmcached.cli.serve.child_service import ChildService
from mmcached.wire.process.death import environment_for_children
from mmcached.wire.version import PROTOCOL_VERSION
from tests.hosts.prompts import Content, image, messages, text
from tests.hosts.vllm.conftest import MakeCheckpoint
from tests.hosts.vllm.servers import VllmServer, mmcached
from tests.hosts.vllm.sharing import SMALL_STEPS, ask_all, store_config
from tests.house import REPOSITORY, SOURCE_ROOTS
from tests.integration.processes import eventually, stats_of

MESSAGES = list(messages(40, seed=6, images=range(40)))
LARGEST = [[image(number, 224), text("What?")] for number in range(40)]
KEPT_BYTES = 20 << 10
"""Of a record, in a store that is too small for the embeddings of the largest image, 32 KiB."""


def test_service_is_absent_of_another_version_too_small_and_at_last_there(
    checkpoint: MakeCheckpoint, service_dir: Path, tmp_path: Path
) -> None:
    run_dir = service_dir / "s"
    with VllmServer(checkpoint("qwen2_5_vl"), tmp_path / "log", {**SMALL_STEPS, **mmcached(run_dir)}) as server:
        asked: Sequence[Content] = [*MESSAGES, *LARGEST]
        absent = ask_all(server, asked)
        assert len(set(absent[len(MESSAGES) :])) == len(LARGEST), "a wrong image would show"
        with service_of_another_version(run_dir, tmp_path):
            assert ask_all(server, asked) == absent
        with ChildService(run_dir, store_config(store_gb=KEPT_BYTES / 2**30), tmp_path / "small.json"):
            assert ask_all(server, asked) == absent
        with ChildService(run_dir, store_config(), tmp_path / "config.json"):
            eventually(lambda: (ask_all(server, asked[:8]), stats_of(run_dir).store.puts)[1], bool, "a save")
            assert ask_all(server, asked) == absent
            encoded = len(server.items_encoded())
            eventually(
                lambda: (ask_all(server, asked), len(server.items_encoded()))[1] - encoded,
                lambda new: new == 0,
                "loads",
            )
        assert ask_all(server, asked) == absent


@contextmanager
def service_of_another_version(run_dir: Path, folder: Path) -> Iterator[None]:
    """Run a store that speaks the next version of the protocol, from sources of its own."""
    for root in SOURCE_ROOTS:
        shutil.copytree(REPOSITORY / root, folder / root, ignore=shutil.ignore_patterns("__pycache__"))
    version = folder / "shm" / "mmcached" / "wire" / "version.py"
    this, following = (f"PROTOCOL_VERSION = {number}\n" for number in (PROTOCOL_VERSION, PROTOCOL_VERSION + 1))
    assert this in version.read_text()
    version.write_text(version.read_text().replace(this, following))
    sources = os.pathsep.join(str(folder / root) for root in SOURCE_ROOTS)
    service = subprocess.Popen(
        [sys.executable, "-m", "mmcached", "serve", "--workers", "0", "--run-dir", str(run_dir), "--store-gb", "0.1"],
        env=environment_for_children() | {"PYTHONPATH": sources},
        stdout=subprocess.PIPE,
    )
    with service:
        assert service.stdout is not None
        assert service.stdout.readline().startswith(b"mmcached ready")
        yield
        service.terminate()
