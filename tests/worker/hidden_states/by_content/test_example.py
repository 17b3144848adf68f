"""The example of a server that keeps rows by itself does what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[4] / "examples" / "prefix_rows.py"


def test_a_server_of_its_own_computes_what_is_not_in_the_store() -> None:
    run = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=True, timeout=60)
    equal, computed = run.stdout.splitlines()
    assert equal == "the rows are equal: True"
    assert computed == "rows computed: 108 of 268"
