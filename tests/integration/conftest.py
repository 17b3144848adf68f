"""Services for all tests that leave them as they found them: a start takes seconds, most of them torch's."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mmcached.cli.serve.child_service import ChildService
from mmcached.wire.config import ServiceConfig
from tests.integration.processes import small_config


@pytest.fixture(scope="session")
def lasting_service() -> Iterator[ChildService]:
    """A service of five processes, with a ring. No test may end it, or one of its roles."""
    with _lasting(small_config(probe_timeout_s=0.5)) as service:
        yield service


@pytest.fixture(scope="session")
def lasting_lru_service() -> Iterator[ChildService]:
    """The same in lru mode: without a ring."""
    with _lasting(small_config(mm_processor_cache_type="lru")) as service:
        yield service


@contextmanager
def _lasting(config: ServiceConfig) -> Iterator[ChildService]:
    scratch = Path(tempfile.mkdtemp(prefix="mmc-", dir="/tmp"))
    with ChildService(scratch / "s", config, scratch / "config.json") as service:
        yield service
    shutil.rmtree(scratch)
