"""What a release is, and what each Python that is here makes of it: `make test-packaging`, with packages from an index.

With the extra `store`, which has no torch. A Python that is not on this machine is skipped by name.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mmcached.client import Client
from tests.house import REPOSITORY
from tests.house.test_dependencies import PROJECT
from tests.house.test_wheel import run

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(900)]

VERSIONS = ("3.11", "3.12", "3.13")


def interpreter(version: str) -> str | None:
    """Return a Python of this version: on the path, or where pyenv keeps its."""
    candidates = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    for candidate in candidates:
        if candidate is not None:
            asked = subprocess.run([candidate, "-c", ""], capture_output=True, check=False)
            if asked.returncode == 0:  # else it is a shim for a version that is not chosen
                return str(candidate)
    return None


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole release, as `make release` builds and checks it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "scripts.release", "--no-images", "--out", folder, cwd=REPOSITORY)
    return folder


@pytest.mark.parametrize("version", VERSIONS)
def test_a_python_serves_and_asks(dist: Path, tmp_path: Path, run_dir: Path, version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]
    run(python, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    inside = tmp_path / "env" / "bin"
    (wheel,) = dist.glob("*.whl")
    run(inside / "python", "-m", "pip", "install", "--quiet", wheel, cwd=tmp_path)
    refused = subprocess.run([inside / "mmcached"], capture_output=True, text=True, check=False)
    assert "pip install '.[store]'" in refused.stderr
    (native,) = dist.glob("mmcached_native-*.tar.gz")
    run(inside / "python", "-m", "pip", "install", "--quiet", f"{wheel}[store,native]", native, cwd=tmp_path)
    serve = [str(inside / "mmcached"), "serve", "--workers", "0", "--store-gb", "0.05", "--run-dir", str(run_dir)]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as service:
        try:
            assert service.stdout is not None
            assert service.stdout.readline().startswith("mmcached ready")
            with Client(run_dir, fail_open=False) as client:  # of the Python and with the torch of this test
                client.put("bf16", {"x": torch.tensor([1.0, -2.0], dtype=torch.bfloat16)})
            child = Path(__file__).with_name("client_alone.py")
            found = json.loads(run(inside / "python", child, run_dir, "--store-alone", cwd=tmp_path))
        finally:
            service.terminate()
    assert service.returncode == 0
    assert found["torch"] is False
    assert found["session"] == "NativeSession"
    assert found["python"] == version
    assert found["values"][:2] == [[0.0, 1.0, 2.0]] * 2
