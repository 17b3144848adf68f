"""Runs a command on a terminal of its own."""

from __future__ import annotations

import os
import pty
import subprocess

from tests.shm.processes import DEADLINE_S


def on_a_terminal(*command: str, pipes_stdout: bool = False) -> str:
    """Return what a terminal of 160 columns has been sent.

    Args:
        pipes_stdout: the standard output is read by somebody else, and only the other one is the terminal.
    """
    ours, theirs = pty.openpty()
    out = subprocess.DEVNULL if pipes_stdout else theirs
    with subprocess.Popen(command, stdout=out, stderr=theirs, env=os.environ | {"COLUMNS": "160"}) as child:
        os.close(theirs)
        seen = b""
        try:
            while piece := os.read(ours, 1 << 16):
                seen += piece
        except OSError:  # EIO: the last process that had the terminal has ended
            pass
        child.wait(DEADLINE_S)
    os.close(ours)
    return seen.decode(errors="replace")
