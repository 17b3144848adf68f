"""A service for all tests that leave it as they found it: a start takes seconds, most of them torch's.

`tests/house/distribution.py` gives these tests to one process.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmcached.cli.serve.child_service import ChildService
from tests.integration.processes import small_config


@pytest.fixture(scope="session")
def lasting_service() -> Iterator[ChildService]:
    """A service of five processes, with a ring. No test may end it, or one of its roles."""
    config = small_config(probe_timeout_s=0.5)
    scratch = Path(tempfile.mkdtemp(prefix="mmc-", dir="/tmp"))
    with ChildService(scratch / "s", config, scratch / "config.json") as service:
        yield service
    shutil.rmtree(scratch)
