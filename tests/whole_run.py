"""Decides whether a run of pytest was of one whole folder, in which every test passed: a note says so afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.tested_with import commit_of_code

BEGAN_AT = commit_of_code()
"""The commit when the run began; None if code had changed since."""
DEFAULT_MARKS = ("", "not soak", "not chaos")
"""What `make test` and `make soak` select."""
_NARROWING = ("keyword", "lf", "deselect", "ignore", "ignore_glob")


def passed_folder(session: pytest.Session, exitstatus: int) -> tuple[Path, list[str]] | None:
    """Return the folder of a run and the ids of the tests that passed; None if not the whole folder passed."""
    folders = [Path(argument) for argument in session.config.args]
    narrowed = any(
        session.config.getoption(name, None) for name in ("keyword", "lf", "deselect", "ignore", "ignore_glob")
    )
    marks = session.config.getoption("markexpr")
    if exitstatus != 0 or narrowed or marks not in DEFAULT_MARKS or len(folders) != 1 or not folders[0].is_dir():
        return None
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    assert terminal is not None
    return folders[0], [report.nodeid for report in terminal.stats.get("passed", [])]
