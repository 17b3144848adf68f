"""Folders that programs import TensorRT-LLM from: what stands for it, and its own two files where a checkout is given.

    make test-tensorrt-llm TENSORRT_LLM_SOURCE=<checkout>

Such a run leaves a note for docs/tested-with.md.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mmcached.integrations.tensorrt_llm import encoder_cache
from mmcached.wire.process.death import environment_for_children
from scripts.tested_with import note, version_of_files
from tests.house import REPOSITORY
from tests.integration.lone_frontend import LoneFrontend
from tests.integration.processes import small_config
from tests.integrations.tensorrt_llm.engine_child import Engine
from tests.whole_run import BEGAN_AT, passed_folder

SITE = Path(__file__).with_name("site")
SOURCE = "TENSORRT_LLM_SOURCE"
MODELS = "tensorrt_llm.models"
OWN_FILES = ("_torch/tensor_lru_cache.py", "_torch/models/modeling_multimodal_mixin.py")
DEADLINE_S = 60.0


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Note a run of this whole folder with TensorRT-LLM's own files in which every test passed."""
    source = os.environ.get(SOURCE)
    passed = None if source is None else passed_folder(session, exitstatus)
    if source is not None and passed is not None and passed[0].resolve() == Path(__file__).parent:
        version = version_of_files(Path(source, "tensorrt_llm"), OWN_FILES)
        note("tensorrt_llm", version=version, num_passed=len(passed[1]), began_at=BEGAN_AT)


def make_site(folder: Path) -> Path:
    """Make a folder with a package `tensorrt_llm`, for the path of programs; return it."""
    shutil.copytree(SITE, folder)
    installed = folder / "tensorrt_llm-1.3.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: 1.3.0\n")
    if (source := os.environ.get(SOURCE)) is not None:
        for name in OWN_FILES:
            shutil.copy(Path(source, "tensorrt_llm", name), folder / "tensorrt_llm" / name)
    return folder


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_site(tmp_path_factory.mktemp("site") / "s")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The small files of a checkpoint."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "tiny"}')
    (folder / "preprocessor_config.json").write_text('{"size": 8}')
    return folder


@pytest.fixture
def store(run_dir: Path) -> Iterator[LoneFrontend]:
    """A service, to be killed and started again as a test wants."""
    with LoneFrontend(run_dir / "s", small_config(store_gb=1 / 16)) as store:
        yield store


class EngineProcess:
    """A process with one model, see `engine_child`; leaving ends it."""

    def __init__(self, site: Path, **options: Any) -> None:
        path = os.pathsep.join([str(site), str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integrations.tensorrt_llm.engine_child", json.dumps(options)],
            cwd=REPOSITORY,
            env=environment_for_children() | {"PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, command: str, *values: Any) -> None:
        """Send a command; `answer` must follow."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, values]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the engine has ended"
        return json.loads(line)

    def do(self, command: str, *values: Any) -> Any:
        self.begin(command, *values)
        return self.answer()

    def stop(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise


@pytest.fixture
def imports(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Has this process import TensorRT-LLM from the site, anew in each test."""
    finders = list(sys.meta_path)
    monkeypatch.syspath_prepend(str(site))
    yield
    sys.meta_path[:] = finders
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorrt_llm" or name.endswith(MODELS)]:
        del sys.modules[name]


@pytest.fixture
def new_engine(
    imports: None, checkpoint: Path, store: LoneFrontend, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Engine]]:
    """`new_engine(**options)`: makes an engine in this process, with the store's run directory."""
    monkeypatch.setattr(encoder_cache, "TIMEOUT_S", DEADLINE_S)  # a busy machine may take longer than usual to answer
    engines: list[Engine] = []

    def start(**options: Any) -> Engine:
        defaults = {"run_dir": str(store.directory.path), "checkpoint": str(checkpoint)}
        engines.append(Engine(**(defaults | options)))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


@pytest.fixture
def new_process(site: Path, checkpoint: Path, store: LoneFrontend) -> Iterator[Callable[..., EngineProcess]]:
    """`new_process(**options)`: the same in a process of its own."""
    engines: list[EngineProcess] = []

    def start(**options: Any) -> EngineProcess:
        defaults = {"run_dir": str(store.directory.path), "checkpoint": str(checkpoint)}
        engines.append(EngineProcess(site, **(defaults | options)))
        return engines[-1]

    yield start
    for engine in engines:
        engine.stop()
