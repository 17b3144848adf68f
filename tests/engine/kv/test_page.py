"""The example of docs/kv-cache.md finds what it says."""

from __future__ import annotations

import pytest

from tests.docs.pages import code
from tests.house import REPOSITORY


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = code(REPOSITORY / "docs" / "kv-cache.md", "py")
    exec(example, {})
    assert capsys.readouterr().out.split() == ["first", "0", "second", "96"]
