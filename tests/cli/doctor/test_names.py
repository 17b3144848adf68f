"""The doctor says which programs have named outputs here, and why two of them do not share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmcached.cache.name_files import note_name
from mmcached.cache.output_names import ROWS
from mmcached.cli.doctor.finding import CheckedHost
from mmcached.cli.doctor.names import names

VLLM: dict[str, Any] = dict.fromkeys(ROWS) | {"host": "vllm", "batching": "any", "libraries": {"torch": "2.13"}}


def test_names_are_counted_by_program_and_the_newest_compared(run_dir: Path) -> None:
    host = CheckedHost(run_dir)
    assert names(host).what == "no encoder outputs were named in this run directory"
    note_name(run_dir, VLLM)
    note_name(run_dir, VLLM | {"host": "transformers", "batching": "alone"})
    assert names(host).what == "transformers: 1 name, batching: alone; vllm: 1 name, batching: any"
    changed = dict.fromkeys(("attention", "code", "device", "dtype"), 1)
    note_name(run_dir, VLLM | changed)
    assert "vllm: 2 names" in names(host).what
    assert "differ in attention, code, device and 1 more parts" in names(host).what
