"""Another host for the checks: a root with just the files that a test writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmcached.cli.doctor.finding import CheckedHost

MEMINFO = "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n"


def a_host(root: Path, files: dict[str, str] | None = None, **fields: Any) -> CheckedHost:
    for name, text in ({"proc/meminfo": MEMINFO} | (files or {})).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return CheckedHost(**({"run_dir": root / "run", "root": root} | fields))
