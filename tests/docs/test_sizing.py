"""The calculator of the page and the one of the command line are the same arithmetic."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import asdict, fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.bench.policies import Lru
from scripts.simulate_fleet.cases import BASE
from scripts.simulate_fleet.levels import GIB, first_level
from scripts.simulate_fleet.requests import draw
from scripts.sizing import Load, sizes
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


def test_the_script_returns_what_it_computes() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here")
    names = ", ".join(f"{name}: {value}" for name, value in asdict(Load(workers=2.0)).items())
    code = f"{SCRIPT.read_text()}\nconsole.log(Object.entries(sizes({{{names}}})).join(' '))"
    said = subprocess.run([node, "-e", code], capture_output=True, text=True, check=True, timeout=60).stdout
    found = {name: float(value) for name, value in (pair.split(",") for pair in said.split())}
    assert found == pytest.approx(sizes(Load(workers=2.0)))


@pytest.mark.parametrize("window_s", [60.0, 180.0, 600.0])
def test_a_store_takes_what_comes_again(window_s: float) -> None:
    """Of the requests of the simulated fleet, a store as large as the page says finds all that come in the window."""
    requests = draw(replace(BASE.load, hosts=1), 12_000, seed=1)
    seconds = requests.length_s / len(requests.keys)
    last: dict[int, int] = {}
    gaps_s = np.full(len(requests.keys), np.inf)
    for number, key in enumerate(requests.keys.tolist()):
        if key in last:
            gaps_s[number] = seconds * (number - last[key])
        last[key] = number
    half = len(gaps_s) // 2
    reuse = float((gaps_s[half:] <= window_s).mean())
    store_gib = sizes(Load(images_per_s=BASE.load.images_per_s, reuse=reuse, window_s=window_s))["store_gib"]
    is_found = first_level(requests, 1, round(store_gib * GIB), Lru)
    assert is_found[half:].mean() >= reuse


def test_a_store_is_never_smaller_than_four_records() -> None:
    assert sizes(Load(images_per_s=0))["store_gib"] == 0.25


def test_a_second_level_takes_what_all_hosts_encode_and_one_host_needs_none() -> None:
    load = Load(images_per_s=40, reuse=0.75, window_s=60, hosts=3)
    assert sizes(load)["second_gib"] >= 1.25 * 3 * sizes(load)["store_gib"]
    assert sizes(Load())["second_gib"] == 0


def test_the_pages_of_deploying_say_the_same() -> None:
    page = " ".join((REPOSITORY / "docs" / "deploy" / "README.md").read_text().split())
    found = re.search(
        r"(\d+) MiB for a store alone .+ (\d+) MiB for frontend, engine and decoders plus (\d+) MiB", page
    )
    assert found is not None
    for workers, mib in (
        (0, int(found[1])),
        (1, int(found[2]) + int(found[3])),
        (3, int(found[2]) + 3 * int(found[3])),
    ):
        of = sizes(Load(workers=workers))
        assert of["memory_gib"] - of["store_gib"] - of["ring_gib"] == pytest.approx(mib / 1024)
