"""Runs all that needs a CUDA device, in one call of under ten minutes: the tests, then each section of `gpu`.

    python -m scripts.studies.gpu_all --out FOLDER

Installs nothing: it takes the interpreter it is called with, and that one's torch. Each part is a process of at most
two minutes, and writes FOLDER/<part>.json when it has ended; a part whose file is there is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

from scripts.bench.harness import Row, print_bounds, print_rows, row

PART_S = 120
CHECKOUT = Path(__file__).resolve().parents[2]
TESTED = ["tests/worker", "tests/client/device", "tests/cli/doctor"]
SOURCES = ["frontend", "engine", "worker", "shm"]
sys.path[:0] = [str(CHECKOUT / source) for source in SOURCES]  # for this process, as `environment` for the parts


def environment() -> dict[str, str]:
    """Return the environment in which this checkout is importable, also where it is not installed."""
    paths = [str(CHECKOUT), *(str(CHECKOUT / source) for source in SOURCES), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}


def run(command: list[str], log: Path) -> tuple[int, str]:
    """Run a part; return its exit status, -1 if it took too long, and what it printed. `log` has what it said."""
    with log.open("wb") as errors:
        try:
            done = subprocess.run(
                command,
                cwd=CHECKOUT,
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=errors,
                timeout=PART_S,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            return -1, (late.stdout or b"").decode(errors="replace")
    return done.returncode, done.stdout.decode(errors="replace")


def tests(out: Path) -> dict[str, Any]:
    """Run the tests on the device; return the rows, and the names of those that failed."""
    report = out / "tests.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "8",
        "-p",
        "no:cacheprovider",
        f"--junit-xml={report}",
        *TESTED,
    ]
    status, printed = run(command, out / "tests.log")
    (out / "tests.txt").write_text(printed)
    if not report.exists():
        return {"status": status, "rows": [], "failed": [printed[-2000:]]}
    cases = list(ElementTree.parse(report).iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    passed = len(cases) - len(bad) - skipped
    rows = [row("tests on the device", "passed", passed, "tests", peer="all", peer_value=max(1, len(cases)))]
    names = [f"{case.get('classname')}::{case.get('name')}" for case in bad]
    return {"status": status, "rows": [_plain(each) for each in rows], "failed": names, "skipped": skipped}


def section(name: str, out: Path, *, is_quick: bool) -> dict[str, Any]:
    quick = ["--quick"] if is_quick else []
    command = [sys.executable, "-m", "scripts.studies.gpu", "--json", "--only", name, *quick]
    status, printed = run(command, out / f"{name}.log")
    rows = json.loads(printed) if status == 0 else []
    return {"status": status, "rows": rows, "failed": [] if status == 0 else [f"{name}: status {status}"]}


def _plain(each: Row) -> dict[str, Any]:
    return {name: getattr(each, name) for name in Row.__slots__}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for what is found")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--again", action="store_true", help="run also what has run")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device here: nothing was run")
    from scripts.studies.gpu import BOUNDS, SECTIONS

    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    properties = torch.cuda.get_device_properties(0)
    about = {"device": properties.name, "torch": torch.__version__, "cuda": torch.version.cuda}
    (out / "about.json").write_text(json.dumps(about, indent=1))
    failed: list[str] = []
    rows: list[Row] = []
    for name in ["tests", *SECTIONS]:
        file = out / f"{name}.json"
        if arguments.again or not file.exists():
            begun = time.monotonic()
            found = tests(out) if name == "tests" else section(name, out, is_quick=arguments.quick)
            file.write_text(json.dumps(found, indent=1))
            print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
        found = json.loads(file.read_text())
        failed += found["failed"]
        rows += [Row(**each) for each in found["rows"]]
    print_rows(f"On {about['device']}, torch {about['torch']}", rows, as_json=False)
    print_bounds(rows, BOUNDS)
    (out / "rows.json").write_text(json.dumps([_plain(each) for each in rows], indent=1))
    for name in failed:
        print(f"FAILED {name}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
