"""P0 never imports torch: it costs seconds at start and hundreds of MiB, and P0 has no use for it."""

from __future__ import annotations

import subprocess
import sys


def test_import_leaves_torch_out() -> None:
    late = "'mmcached.frontend.processing.hasher' in sys.modules"
    code = f"import sys, mmcached.frontend; print('torch' in sys.modules, {late})"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert child.stdout.split() == ["False", "True"]
