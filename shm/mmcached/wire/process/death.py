"""Makes a child die with its parent, so that no orphan outlives a killed supervisor.

Linux only (`PR_SET_PDEATHSIG`). The signal follows the *thread* that spawned the child: spawn from the main thread.
Children import this module first, so it imports next to nothing.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT_PID_VARIABLE = "MMC_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def environment_for_children() -> dict[str, str]:
    """Return this process's environment with the variable that `arm_from_environment` reads in a child."""
    return {**os.environ, PARENT_PID_VARIABLE: str(os.getpid())}


def arm_from_environment(signum: int = signal.SIGKILL) -> None:
    """Ask the kernel for a signal when the parent dies; exit at once if it is dead. No-op without the variable.

    An `exec` keeps the request.
    """
    parent = os.environ.pop(PARENT_PID_VARIABLE, None)
    if parent is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != int(parent):
        sys.exit(f"parent {parent} is gone")
