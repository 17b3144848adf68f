"""A new user's walk through docs/traces.md: from a log of his own to a size, and to what it saves."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmcached.cli.app import app
from tests.house import REPOSITORY

PAGE = (REPOSITORY / "docs" / "traces.md").read_text()
NUM_USES = 400
MIB = 1 << 20


def run_page_line(begin: str, log: Path) -> str:
    """Run the page's command that begins so, with a log of one's own in place of the example."""
    found = re.search(rf"^ +{re.escape(begin)} .*$", PAGE, re.MULTILINE)
    assert found is not None, f"the page has no {begin}"
    _, *arguments = found[0].replace("examples/composed_trace.jsonl", str(log)).split()
    ended = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def own_log(path: Path) -> float:
    """Write a log in the page's format: half of the uses are of ten items. Return the seconds that all cost."""
    example = re.search(r'^ +(\{"t": .*\})$', PAGE, re.MULTILINE)
    assert example is not None, "the page shows a line of a log"
    line = json.loads(example[1])
    rng, total_s = random.Random(0), 0.0
    with path.open("w") as log:
        for use in range(NUM_USES):
            item = rng.randrange(10) if use % 2 else 100 + use
            line |= {"t": use / 10, "key": f"{item}.jpg", "bytes": MIB, "cost_s": 0.5}
            total_s += 0.5
            log.write(json.dumps(line) + "\n")
    return total_s


def test_an_own_log_is_answered_with_a_size_and_what_it_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "uses.jsonl"
    total_s = own_log(log)
    monkeypatch.chdir(tmp_path)
    said = run_page_line("mmcached size", log)
    assert Path("curve.svg").exists()
    answer = re.search(r"--store-gb (\S+) saves ([\d.]+) % of these seconds", said)
    assert answer is not None, said
    assert f"cost {total_s:,.1f} s without a store" in said
    assert 40 < float(answer[2]) <= 50, "the uses of ten items, less the first ones"
    over_time = run_page_line("mmcached replay", log)
    assert Path("replay.svg").exists()
    assert re.search(r"│ all\s+│ 400\s", over_time), over_time
