"""Compiles the reader in C, as it is or with one rule removed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.house import REPOSITORY

INCLUDE = REPOSITORY / "shm" / "mmcached" / "include"
HERE = Path(__file__).parent
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
SANITIZERS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
Edit = tuple[str, str]
"""A text that occurs once in the header, and what is there instead."""


def compiler(name: str = "cc") -> str:
    """Return the path of a compiler; skip the test without one."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} on the path: the reader in C is not tested")
    return found


def compile_c(source: Path, output: Path, *flags: str, edits: Sequence[Edit] = ()) -> Path:
    """Compile a source against the header, or against a copy of it with edits; return the output."""
    include = INCLUDE
    if edits:
        include = output.with_suffix(".include")
        include.mkdir()
        header = (INCLUDE / "mmcached_reader.h").read_text()
        for old, new in edits:
            assert header.count(old) == 1, old
            header = header.replace(old, new)
        (include / "mmcached_reader.h").write_text(header)
    command = [compiler(), "-std=gnu11", *flags, f"-I{include}", str(source), "-o", str(output), "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return output
