"""Ends the wait of dead processes that nobody else waits for: PID 1 of a container inherits them.

A frontend that is killed leaves its decoders. They end at once, and stay as zombies, each a slot of the pid limit,
until their new parent has asked for their status.
"""

from __future__ import annotations

import os
from collections.abc import Container


def reap_orphans(own: Container[int]) -> None:
    """Reap the dead children of this process up to the first one that is `own`, whose status somebody else wants."""
    while True:
        try:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if dead is None or dead.si_pid in own:
            return
        os.waitpid(dead.si_pid, 0)
