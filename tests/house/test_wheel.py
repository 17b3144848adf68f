"""What `pip install mmcached` gives: built as a release is, installed in a bare environment, used from elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import torch

from mmcached.client import Client
from tests.client.services import StoreService
from tests.house import REPOSITORY, SOURCE_ROOTS
from tests.house.test_dependencies import PROJECT, names


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command that sees no checkout: another folder, and nothing of the caller's Python path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MMCACHED_"))}
    child = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert child.returncode == 0, child.stdout + child.stderr
    return child.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, REPOSITORY, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bare virtual environment with the wheel in it; its dependencies come from the environment of this test."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    run(
        *(sys.executable, "-m", "pip", "--python", python),
        *("install", "--quiet", "--no-deps", "--no-index", wheel),
        cwd=folder,
    )
    # .pth files in the folder that this one points at are not read, so the editable install does not come along.
    (site_packages(folder) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


@pytest.fixture(scope="module")
def client_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install mmcached` makes of an empty environment: the wheel, its dependencies, and nothing else."""
    folder = tmp_path_factory.mktemp("client")
    venv.create(folder, with_pip=False, symlinks=True)
    zipfile.ZipFile(wheel).extractall(site_packages(folder))
    for name in names(PROJECT["dependencies"]):
        parts = {file.parts[0] for file in metadata.files(name) or () if ".." not in file.parts}
        for part in parts - {"__pycache__"}:
            (site_packages(folder) / part).symlink_to(Path(sysconfig.get_path("purelib")) / part)
    return folder


def site_packages(environment: Path) -> Path:
    return Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))


def test_wheel_holds_the_four_portions_and_nothing_generic(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"mmcached", "mmcached-0.1.0.dist-info"}
    expected = {
        str(path.relative_to(REPOSITORY / root))
        for root in SOURCE_ROOTS
        for path in (REPOSITORY / root / "mmcached").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {name for name in names if name.startswith("mmcached/")} == expected
    assert "mmcached-0.1.0.dist-info/licenses/LICENSE" in names
    assert "mmcached/include/mmcached_reader.h" in names


@pytest.mark.soak
def test_a_program_that_imports_the_package_passes_a_strict_type_checker(environment: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text('from mmcached import Client\n\nkeys: list[str] = Client("/tmp/mmcached").keys()\n')
    checker = (sys.executable, "-m", "mypy", "--strict", "--python-executable", environment / "bin" / "python")
    run(*checker, program, cwd=tmp_path)


def test_sdist_holds_what_a_packager_needs(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "LICENSE", "Makefile", "constraints.txt", "tests/conftest.py"} <= names
    assert {name.partition("/")[0] for name in names} <= {
        *SOURCE_ROOTS,
        *(
            "docs",
            "scripts",
            "tests",
            "examples",
            "deploy",
            "pyproject.toml",
            "LICENSE",
            "Makefile",
            "constraints.txt",
            "mkdocs.yml",
            "PKG-INFO",
            ".gitignore",
        ),
        *(path.name for path in REPOSITORY.glob("*.md")),
    }


def test_installed_modules_are_the_wheel_s(environment: Path) -> None:
    found = run(
        *(
            environment / "bin" / "python",
            "-c",
            "import mmcached, mmcached.wire as w; print(*mmcached.__path__, w.__file__, mmcached.get_include())",
        ),
        cwd=environment,
    )
    portion = site_packages(environment) / "mmcached"
    assert found.split() == [str(portion), str(portion / "wire" / "__init__.py"), str(portion / "include")]


@pytest.mark.parametrize("command", [["bin/mmcached"], ["bin/python", "-m", "mmcached"]], ids=["script", "module"])
def test_installed_command_works_from_anywhere(environment: Path, tmp_path: Path, command: list[str]) -> None:
    assert "serve" in run(environment / command[0], *command[1:], "--help", cwd=tmp_path)


def test_a_client_needs_no_torch(client_environment: Path, run_dir: Path) -> None:
    with StoreService(run_dir):
        with Client(run_dir) as client:
            client.put("bf16", {"x": torch.tensor([1.0, -2.0], dtype=torch.bfloat16)})
        python = client_environment / "bin" / "python"
        found = json.loads(run(python, Path(__file__).with_name("client_alone.py"), run_dir, cwd=client_environment))
    assert found["torch"] is False
    assert found["types"] == ["numpy"] * 3
    assert found["values"] == [[0.0, 1.0, 2.0], [0.0, 1.0, 2.0], [1, 2], 7]
    assert "bfloat16" in found["bf16"]
    assert "'bytes'" in found["bf16"]
    assert found["bytes"] == [0x80, 0x3F, 0x00, 0xC0]
    assert "torch is not installed here" in found["wants torch"]
