"""A bar is for whoever sees it, and goes when the work is done; the verbs that take long have one."""

from __future__ import annotations

import sys

import pytest

from tests.cli.terminals import on_a_terminal

WORK = """
import sys
from mmcached.cli.progress import working
with working("doing [it]") as tell:
    tell("doing [more]")
    assert pipe == ("rich" not in sys.modules)
print("done")
"""
CLEARED = "\x1b[2K"


@pytest.mark.parametrize("pipes_stdout", [False, True])
def test_a_bar_is_seen_on_a_terminal_alone(pipes_stdout: bool) -> None:
    shown = on_a_terminal(sys.executable, "-c", f"pipe = {pipes_stdout}{WORK}", pipes_stdout=pipes_stdout)
    if pipes_stdout:
        assert shown == ""
    else:
        assert "doing [more]" in shown
        assert shown.rstrip().endswith("done")
        assert CLEARED in shown.rpartition("doing [more]")[2], "nothing of it is left"


def test_removing_what_the_dead_have_left_shows_one() -> None:
    shown = on_a_terminal(sys.executable, "-m", "mmcached", "shm", "gc")
    assert "removing what the dead have left" in shown
