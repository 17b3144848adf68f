"""A test that hangs, for `test_processes.py` to run in a child pytest.

Not named test_*: the suite itself does not collect it.
"""

from __future__ import annotations

import threading

import pytest


@pytest.mark.timeout(0.2)
def test_hangs() -> None:
    threading.Event().wait()
