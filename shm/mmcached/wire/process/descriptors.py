"""Raises the number of files and sockets that a role may have open to what its user may allow it.

Shells set the soft limit to 1024 for the sake of programs that use `select`; no role does.
"""

from __future__ import annotations

import resource


def raise_descriptor_limit() -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
