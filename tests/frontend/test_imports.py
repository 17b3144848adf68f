"""P0 never imports torch: it costs seconds at start and hundreds of MiB, and P0 has no use for it."""

from __future__ import annotations

import subprocess
import sys


def test_import_leaves_torch_out() -> None:
    code = "import sys, mmcached.frontend; print('torch' in sys.modules, 'mmcached.frontend.hasher' in sys.modules)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert child.stdout.split() == ["False", "True"]
