"""The head of each package is its map: it names every module and every folder in it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.house import REPOSITORY

ROOTS = ("shm", "frontend", "engine", "worker")
PACKAGES = sorted(head.parent for root in ROOTS for head in (REPOSITORY / root / "mmcached").rglob("__init__.py"))


def rooms(package: Path) -> set[str]:
    """Return the names of the modules and folders that lie directly in `package`."""
    modules = {file.stem for file in package.glob("*.py") if file.stem != "__init__"}
    return modules | {folder.name for folder in package.iterdir() if any(folder.glob("*.py"))}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: str(package.relative_to(REPOSITORY)))
def test_head_of_package_names_its_rooms(package: Path) -> None:
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    named = set(re.findall(r"\w+", text))
    assert rooms(package) - named == set()


def test_every_folder_with_modules_has_a_head() -> None:
    folders = {file.parent for root in ROOTS for file in (REPOSITORY / root / "mmcached").rglob("*.py")}
    top = {REPOSITORY / root / "mmcached" for root in ROOTS}
    assert folders - set(PACKAGES) - top == set()
