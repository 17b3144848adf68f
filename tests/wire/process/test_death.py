"""A child that was armed does not outlive its parent, whichever of the two is first."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

from mmcached.wire.process.death import PARENT_PID_VARIABLE, environment_for_children

DEADLINE_S = 120.0
ARMED_CHILD = """
import os, signal, sys
from mmcached.wire.process.death import PARENT_PID_VARIABLE, arm_from_environment
arm_from_environment()
assert PARENT_PID_VARIABLE not in os.environ, "its own children have another parent"
os.write(int(sys.argv[1]), f"{os.getpid()}\\n".encode())
signal.pause()
"""
PARENT = """
import signal, subprocess, sys
from mmcached.wire.process.death import environment_for_children
fd = int(sys.argv[1])
subprocess.Popen([sys.executable, "-c", sys.argv[2], str(fd)], pass_fds=[fd], env=environment_for_children())
signal.pause()
"""


def read_or_end(fd: int) -> bytes:
    """Return what is written next, b"" when the last writer has died."""
    ready, _, _ = select.select([fd], [], [], DEADLINE_S)
    assert ready, "nothing happened"
    return os.read(fd, 100)


def test_child_dies_with_its_killed_parent() -> None:
    reading, writing = os.pipe()
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(writing), ARMED_CHILD], pass_fds=[writing])
    os.close(writing)
    try:
        child = int(read_or_end(reading))
        parent.kill()
        parent.wait(DEADLINE_S)
        assert read_or_end(reading) == b"", "the child has let go of its end, so it is dead"
        # This process adopts orphans, see conftest.
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL
    finally:
        parent.kill()
        parent.wait(DEADLINE_S)
        os.close(reading)


def run_armed(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    code = "from mmcached.wire.process.death import arm_from_environment; arm_from_environment(); print('alive')"
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )


def test_child_exits_if_the_parent_is_gone_already() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait(DEADLINE_S)
    finished = run_armed({**os.environ, PARENT_PID_VARIABLE: str(gone.pid)})
    assert finished.returncode == 1
    assert finished.stdout == ""
    assert f"parent {gone.pid} is gone" in finished.stderr


def test_child_of_a_living_parent_goes_on() -> None:
    environment = environment_for_children()
    assert environment[PARENT_PID_VARIABLE] == str(os.getpid())
    assert run_armed(environment).stdout == "alive\n"
