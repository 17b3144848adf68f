"""Reaps dead processes inherited by PID 1 of a container.

A killed frontend leaves its decoders. They end at once, and stay as zombies, each a slot of the pid limit, until their
new parent reaps them.
"""

from __future__ import annotations

import os
from collections.abc import Container


def reap_orphans(own: Container[int]) -> None:
    """Reap dead children up to the first child in `own`, whose status other code needs."""
    while True:
        try:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if dead is None or dead.si_pid in own:
            return
        os.waitpid(dead.si_pid, 0)
