"""The calculator of the page and the one of the command line are the same arithmetic."""

from __future__ import annotations

import re
from dataclasses import asdict, fields
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.studies.sizing import Load, sizes
from tests.house import REPOSITORY
from tests.house.drawing import examples

SCRIPT = REPOSITORY / "docs" / "sizing.js"
PAGE = (REPOSITORY / "docs" / "sizing.md").read_text()
FORMULAS = re.findall(r"^  const (\w+) = (.+);$", SCRIPT.read_text().partition("function show")[0], re.MULTILINE)
LOADS = st.builds(
    Load,
    **{field.name: st.floats(0, 1) if field.name == "reuse" else st.floats(0, 10_000) for field in fields(Load)},
)


def in_the_browser(load: Load) -> dict[str, float]:
    """Compute the page's formulas, which are arithmetic that Python reads as well."""
    names: dict[str, object] = {"n": load, "Math": SimpleNamespace(max=max, min=min)}
    for name, formula in FORMULAS:
        names[name] = eval(formula, {"__builtins__": {}}, names)
    return {name: value for name, value in names.items() if isinstance(value, float)}


@settings(max_examples=examples(100))
@given(LOADS)
def test_both_compute_the_same(load: Load) -> None:
    theirs = in_the_browser(load)
    assert {name: theirs[name] for name in sizes(load)} == pytest.approx(sizes(load))


def test_the_page_asks_for_all_and_shows_all() -> None:
    shown = dict(re.findall(r'<input name="(\w+)"[^>]* value="([\d.]+)">', PAGE))
    assert {name: float(value) for name, value in shown.items()} == asdict(Load())
    assert re.findall(r'<output name="(\w+)">', PAGE) == list(sizes(Load()))
