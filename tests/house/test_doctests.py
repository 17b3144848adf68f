"""Every module can be imported on its own name, and what its docstrings show is what happens."""

from __future__ import annotations

import doctest
import importlib

import pytest

from tests.house import REPOSITORY, SOURCE_ROOTS

# Not pytest's --doctest-modules: its importlib mode may load a module of a namespace package a second time.
MODULES = sorted(
    ".".join(path.relative_to(REPOSITORY / root).with_suffix("").parts).removesuffix(".__init__")
    for root in SOURCE_ROOTS
    for path in (REPOSITORY / root / "mmcached").rglob("*.py")
)

HOSTS = ("mooncake", "vllm", "sglang", "transformers")
"""What a module may want that is not there."""


@pytest.mark.parametrize("package", sorted({name.partition(".")[2].partition(".")[0] for name in MODULES}))
def test_doctests(package: str) -> None:
    for name in MODULES:
        if name.partition(".")[2].partition(".")[0] != package:
            continue
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in HOSTS:
                raise
            continue
        assert doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.FAIL_FAST).failed == 0, name
