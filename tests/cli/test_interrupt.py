"""Ctrl-C at many instants of a command's start: no traceback, status 130, and nothing is left behind.

A module that has been imported is told on stderr (`PYTHONPROFILEIMPORTTIME`): so an instant is a number of modules.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from mmcached.cli.exit_status import INTERRUPTED
from mmcached.shm.segment.segment import leftover_names
from tests.integration.processes import DEADLINE_S, descendants, eventually, is_alive

PROGRAM = [sys.executable, "-m", "mmcached"]
FIRST = "mmcached.cli"
"""The first module of ours: before it, a Ctrl-C is Python's own to answer."""
INSTANTS = (1, 30, 150, 400)
"""Modules after that one."""


def interrupted(arguments: Sequence[str], num_modules: int) -> tuple[int, str]:
    """Run a command and send SIGINT after so many modules; return its status, and what else it has said."""
    environment = os.environ | {"PYTHONPROFILEIMPORTTIME": "1"}
    with subprocess.Popen(
        arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, process_group=0
    ) as process:
        assert process.stderr is not None
        at_the_latest = threading.Timer(DEADLINE_S, process.kill)
        at_the_latest.start()
        num_seen, said = 0, []
        for line in process.stderr:
            module = line.rpartition("|")[2].strip() if line.startswith("import time:") else ""
            if not module:
                said.append(line)
            elif num_seen or module == FIRST:
                num_seen += 1
                if num_seen == num_modules + 1:
                    process.send_signal(signal.SIGINT)
        at_the_latest.cancel()
        at_the_latest.join()
    return process.returncode, "".join(said)


@pytest.mark.parametrize(
    ("arguments", "else_status"),
    [
        ([*PROGRAM, "status"], 3),
        ([*PROGRAM, "frontend"], 1),
        ([*PROGRAM, "worker", "--rank", "0"], 1),
        ([str(Path(sys.executable).with_name("mmcached")), "doctor"], 0),
    ],
    ids=["status", "frontend", "worker", "doctor"],
)
def test_while_modules_are_imported(arguments: list[str], else_status: int, run_dir: Path) -> None:
    """The command may also have ended before the signal comes, with the status that it has without one."""
    for num_modules in INSTANTS:
        status, said = interrupted([*arguments, "--run-dir", str(run_dir / "s")], num_modules)
        assert "Traceback" not in said
        assert "Interrupt" not in said
        assert status in (INTERRUPTED, else_status), said
        assert status == else_status or not said
    assert not (run_dir / "s").exists()


def test_a_start_that_has_begun_is_ended_in_order(run_dir: Path) -> None:
    """From the first process on that it starts; with 0, because everything was ended as it should be."""
    home = run_dir / "s"
    arguments = [*PROGRAM, "serve", "--workers", "0", "--store-gb", "16MiB", "--run-dir", str(home)]
    before = set(leftover_names(os.getuid()))
    for sign in ("stats.page", "client.sock"):
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            eventually((home / sign).exists, bool, f"{sign} of a service that starts")
            children = descendants(process.pid)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
            process.wait(DEADLINE_S)
        starting, *ended = said.splitlines()
        assert (process.returncode, starting) == (0, f"mmcached: starting the frontend alone, a store, in {home}")
        assert all(line.startswith("mmcached: ended after 0 s") for line in ended)  # it was ready by then
        assert not [pid for pid in children if is_alive(pid)]
        assert set(leftover_names(os.getuid())) == before
        assert not [*home.glob("*.sock"), *home.glob("*.ring")]
        (home / "stats.page").unlink(missing_ok=True)


def test_ignored_stays_ignored() -> None:
    """A shell starts background jobs with SIGINT ignored: Ctrl-C is for what runs in front."""
    code = "import os, signal; signal.signal(2, signal.SIG_IGN); os.execv({0!r}, [{0!r}, '-c', {1!r}])"
    kept = "import signal; from mmcached.cli import end_at_interrupt as e; e(); print(signal.getsignal(2).name)"
    done = subprocess.run(
        [sys.executable, "-c", code.format(sys.executable, kept)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert done.stdout == "SIG_IGN\n"
