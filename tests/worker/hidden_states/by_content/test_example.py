"""The example of a server that keeps rows by itself does what it says."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[4] / "examples" / "prefix_rows.py"


def test_a_server_of_its_own_computes_what_is_not_in_the_store(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    equal, computed = capsys.readouterr().out.splitlines()
    assert equal == "the rows are equal: True"
    assert computed == "rows computed: 108 of 268"
