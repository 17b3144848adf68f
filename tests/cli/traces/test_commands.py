"""`mmcached replay` and `mmcached size` with the trace of `examples/`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from mmcached.cli.app import app
from mmcached.cli.traces.playing import play_on
from mmcached.cli.traces.readers import read_uses
from mmcached.cli.traces.simulation import curve, knee, play
from mmcached.client import Client
from mmcached.wire.errors import ConfigError, InvalidRequest, ServiceUnavailable
from tests.client.services import StoreService
from tests.house import REPOSITORY

TRACE = REPOSITORY / "examples" / "composed_trace.jsonl"
SMALL = "".join(
    f'{{"t": {number / 1000}, "key": "{key}", "bytes": {1 << 16}, "cost_s": {cost}, "modality": "{name}"}}\n'
    for number, (key, cost, name) in enumerate(
        [("a", 1, "image"), ("b", 3, "audio"), ("a", 1, "image"), ("a", 1, "image"), ("b", 3, "audio")]
    )
)


def run(*arguments: object) -> Any:
    ended = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.stdout) if "--json" in arguments else ended.stdout


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.jsonl"
    path.write_text(SMALL)
    return path


def test_a_real_store_finds_what_it_has_room_for(small: Path, store: StoreService, run_dir: Path) -> None:
    report = run("replay", small, "--run-dir", run_dir, "--json")
    assert report["total"]["num_uses"] == 5
    assert report["total"]["num_found"] == 3
    assert report["total"]["saved_s"] == 1 + 1 + 3
    assert {part["name"]: part["num_found"] for part in report["by_modality"]} == {"audio": 1, "image": 2}
    assert report["latencies"]["num_refused"] == 0
    assert report["latencies"]["length_s"] >= 0.004, "the last use is not before its time"
    assert report["windows"][-1]["p99_s"] > 0


def test_a_replay_leaves_no_records_behind(small: Path, store: StoreService, run_dir: Path) -> None:
    with Client(run_dir, fail_open=False) as client:
        played = play_on(client, read_uses(small))
        assert played.is_kept.tolist() == [True, True, False, False, False]
    assert len(store.desk.records) == 0


def test_the_simulated_store_finds_the_same(small: Path) -> None:
    report = run("replay", small, "--simulate", "--store-gb", "16MiB", "--json")
    assert report["total"]["num_found"] == 3
    assert report["latencies"] is None
    assert "60.0 %" in run("replay", small, "--simulate", "--store-gb", "16MiB")


def test_size_names_the_smallest_store_that_saves_nine_tenths(tmp_path: Path) -> None:
    picture = tmp_path / "curve.svg"
    found = run("size", TRACE, "--svg", picture, "--json")
    points = found["points"]
    assert [each["store_bytes"] for each in points] == sorted(each["store_bytes"] for each in points)
    assert points[-1]["found"] == pytest.approx(found["most_found"], abs=0.01), "all items have room in the largest"
    assert found["knee"]["saved"] >= 0.9 * points[-1]["saved"]
    assert all(each["saved"] < 0.9 * points[-1]["saved"] for each in points[: points.index(found["knee"])])
    root = ElementTree.parse(picture).getroot()
    assert root.tag.endswith("svg")
    assert "knee" in run("size", TRACE)


def test_a_sample_of_the_items_gives_about_the_same_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = read_uses(TRACE)
    store_bytes = int(trace.sizes.sum()) // 4
    whole = play(trace, store_bytes).mean()
    rates = []
    for seed in range(5):
        sample, share = trace.sampled(len(trace.keys) // 2, seed)
        assert 0 < share < 1
        rates.append(play(sample, int(store_bytes * share)).mean())
    assert np.mean(rates) == pytest.approx(whole, abs=0.1)
    monkeypatch.setattr("mmcached.cli.traces.simulation.SIMULATED_USES", 300)
    assert knee(curve(trace)).saved > 0


def test_arguments_that_do_not_fit_together(small: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="--simulate"):
        run("replay", small, "--simulate")
    with pytest.raises(InvalidRequest, match="--simulate"):
        run("replay", small, "--store-gb", "1")
    with pytest.raises(ConfigError, match="store-gb"):
        run("replay", small, "--simulate", "--store-gb", "large")
    with pytest.raises(ConfigError, match="item-bytes"):
        run("size", small, "--item-bytes", "large")
    with pytest.raises(ConfigError, match="svg"):
        run("size", small, "--svg", tmp_path / "missing" / "curve.svg")
    with pytest.raises(ServiceUnavailable):
        run("replay", small, "--run-dir", tmp_path / "none")
