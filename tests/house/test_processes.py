"""The test processes of `make test`: one that ends in the middle ends the run; those of one service are one's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import REPOSITORY, hanging_examples, isolation

EXAMPLES = Path(hanging_examples.__file__)


def test_a_test_that_hangs_says_where_and_ends_the_run() -> None:
    options = subprocess.check_output([sys.executable, isolation.__file__], text=True).split()
    if not options:
        pytest.skip("the kernel gives no process a /dev/shm of its own, so there is one process only")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "--numprocesses=1", str(EXAMPLES)]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=100)
    assert ended.returncode == 1
    assert "threading.Event().wait()" in ended.stderr
    assert f"crashed while running 'tests/house/{EXAMPLES.name}::test_hangs'" in ended.stdout
    assert "1 failed" in ended.stdout
