"""Leaves out the folders whose host program is not installed here, and notes which versions passed a whole folder."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from scripts.tested_with import note

HOSTS = ("vllm", "sglang", "transformers", "diffusers", "ray", "mooncake", "dynamo", "lmdeploy")
collect_ignore = [host for host in HOSTS if find_spec(host) is None]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Note a run of one whole folder in which every test passed; `python -m scripts.tested_with` shows the notes."""
    folders = [Path(argument) for argument in session.config.args]
    is_whole = not session.config.getoption("keyword") and not session.config.getoption("lf", False)
    if exitstatus == 0 and is_whole and len(folders) == 1 and folders[0].name in HOSTS:
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        assert terminal is not None
        note(folders[0].name, num_passed=len(terminal.stats.get("passed", [])))
