"""Distributes tests among the processes of `make test`: a file at a time, and all that share a service to one of them.

A session's service (`tests/integration/conftest.py`) would start once in each process that has a test of it.
"""

from __future__ import annotations

from functools import cache

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from tests.house import REPOSITORY

_SHARED = "lasting_service"


class ByFileAndService(LoadFileScheduling):  # type: ignore[misc]
    """Gives out files, and the files that name the shared service as one."""

    def _split_scope(self, nodeid: str) -> str:
        return given_out_with(nodeid.partition("::")[0])


@cache
def given_out_with(file: str) -> str:
    """Return the name of all that goes to a process together with this file."""
    is_shared = file.startswith("tests/integration/") and _SHARED in (REPOSITORY / file).read_text()
    return _SHARED if is_shared else file
