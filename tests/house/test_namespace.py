"""One namespace package from four source roots, every part of it in the layers."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections import Counter

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


def test_mmcached_is_a_namespace() -> None:
    assert [str(portion) for portion in PORTIONS if (portion / "__init__.py").exists()] == []
    package = importlib.import_module("mmcached")
    assert package.__file__ is None
    assert set(package.__path__) == {str(portion) for portion in PORTIONS}


def test_each_package_lies_in_one_root() -> None:
    assert [name for name, count in Counter(packages()).items() if count > 1] == []


def test_each_package_says_what_it_is() -> None:
    """A folder without `__init__.py` would be an accidental namespace of its own."""
    assert [name for name in packages() if not importlib.import_module(f"mmcached.{name}").__doc__] == []


def test_layers_name_every_package_and_no_other() -> None:
    required = {name for name in layers() if not name.startswith("(")}
    optional = {name.strip("()") for name in layers() if name.startswith("(")}
    assert required <= set(packages()) <= required | optional


def test_nothing_but_main_lies_beside_the_packages() -> None:
    assert [path.name for portion in PORTIONS for path in portion.glob("*.py")] == ["__main__.py"]
