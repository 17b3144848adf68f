"""One package from four source roots, every part of it in the layers."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from collections import Counter
from importlib import metadata

import pytest

import mmcached
import mmcached.client
from mmcached.wire.errors import MmcachedError
from tests.house import REPOSITORY, SOURCE_ROOTS

PORTIONS = [REPOSITORY / root / "mmcached" for root in SOURCE_ROOTS]


def packages() -> list[str]:
    """The folders below `mmcached` that hold Python code, over all four roots."""
    return [
        folder.name
        for portion in PORTIONS
        for folder in sorted(portion.iterdir())
        if folder.is_dir() and any(folder.rglob("*.py"))
    ]


def layers() -> list[str]:
    """Every name in the layers contract, an optional layer with its parentheses."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    (contract,) = (each for each in settings["tool"]["importlinter"]["contracts"] if each["type"] == "layers")
    assert contract["exhaustive"], "a package outside the layers would pass silently"
    return [name.strip() for line in contract["layers"] for name in re.split("[|:]", line)]


def test_one_root_has_the_package_and_finds_the_others() -> None:
    assert [portion.parent.name for portion in PORTIONS if (portion / "__init__.py").exists()] == ["frontend"]
    package = importlib.import_module("mmcached")
    assert set(package.__path__) == {str(portion) for portion in PORTIONS}


def test_importing_the_package_loads_nothing_else() -> None:
    code = "import sys, mmcached; print([name for name in sys.modules if name.startswith('mmcached.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_it_gives_the_clients_their_errors_and_the_version() -> None:
    for name in mmcached.__all__:
        assert getattr(mmcached, name) is getattr(mmcached.client, name)
    errors = {name for name in mmcached.client.__all__ if issubclass(_class_of(name), MmcachedError)}
    assert errors | {"Client", "AsyncClient"} == set(mmcached.__all__)
    assert mmcached.__version__ == metadata.version("mmcached")
    assert {"Client", "__version__"} <= set(dir(mmcached))
    with pytest.raises(AttributeError, match="no attribute 'Clinet'"):
        mmcached.Clinet  # noqa: B018


def _class_of(name: str) -> type:
    found = getattr(mmcached.client, name)
    return found if isinstance(found, type) else object


def test_each_package_lies_in_one_root() -> None:
    assert [name for name, count in Counter(packages()).items() if count > 1] == []


def test_layers_name_every_package_and_no_other() -> None:
    required = {name for name in layers() if not name.startswith("(")}
    optional = {name.strip("()") for name in layers() if name.startswith("(")}
    assert required <= set(packages()) <= required | optional
