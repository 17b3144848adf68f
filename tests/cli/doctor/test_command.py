"""The verb as people call it: on a host of its own, in a pipe and on a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from mmcached.cli.doctor.checkup import CHECKS
from mmcached.cli.doctor.command import doctor
from tests.cli.terminals import on_a_terminal
from tests.shm.processes import DEADLINE_S

DOCTOR = (sys.executable, "-m", "mmcached", "doctor")


def test_a_small_shm_and_an_open_run_directory_are_problems(run_dir: Path) -> None:
    """In a mount namespace of its own, with a /dev/shm of 8 MiB; what is found is a problem, so the status is 1."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    run_dir.chmod(0o755)
    script = f"mount -t tmpfs -o size=8m none /dev/shm && exec {' '.join(DOCTOR)} --json --run-dir {run_dir}"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    run_dir.chmod(0o700)
    assert done.returncode == 1, done.stderr
    assert done.stderr == "", "no bar in a pipe"
    found = {each["check"]: each for each in json.loads(done.stdout)}
    assert list(found) == list(CHECKS)
    for name, said in (("/dev/shm", "8 MiB"), ("run directory", "chmod 0700")):
        assert found[name]["level"] == "problem"
        assert said in found[name]["what"]
        assert found[name]["fix"]


def test_a_pipe_gets_lines_and_a_terminal_a_table(run_dir: Path) -> None:
    """Neither loads torch; the bar and the table are for whoever sees them."""
    app = typer.Typer()
    app.command()(doctor)
    piped = CliRunner().invoke(app, ["--run-dir", str(run_dir)])
    lines = piped.stdout.splitlines()
    assert len(lines) == len(CHECKS)
    assert all(line.split(":")[0] in ("ok", "warning", "problem") for line in lines)
    assert piped.stderr == ""
    code = (
        "import sys; from mmcached.cli.app import app\n"
        f"try: app(['doctor', '--run-dir', {str(run_dir)!r}])\n"
        "except SystemExit as error: print('torch:', 'torch' in sys.modules)"
    )
    shown = on_a_terminal(sys.executable, "-c", code)
    assert "│ atomic words" in shown
    assert "checking" in shown
    assert shown.rstrip().endswith("torch: False")
