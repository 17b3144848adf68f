"""A role may have as many descriptors open as its user may allow it."""

from __future__ import annotations

import resource
import subprocess
import sys

PROGRAM = """
import resource
from mmcached.wire.process.descriptors import raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
print(raise_descriptor_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_soft_limit_becomes_the_hard_one() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.split() == ["200", "200", "200"]
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] != 200, "of a process of its own"
