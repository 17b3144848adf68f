"""The leak gate fails what leaks and nothing else: shown by child sessions of pytest that run `leaky_examples.py`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mmcached.shm import sweep
from mmcached.shm.segment.ring_notes import remove_notes
from tests.house import REPOSITORY, leaky_examples
from tests.shm.rings import leave_ring, make_ring, overwritten

EXAMPLES = Path(leaky_examples.__file__)


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """One child session over all examples: test name -> what was reported, "" when it passed."""
    leaked = Path(f"/dev/shm/mmc-test-{uuid.uuid4().hex}")
    yield run_examples(tmp_path_factory.mktemp("all"), leaked=leaked)
    leaked.unlink()


def run_examples(folder: Path, *names: str, leaked: Path | None = None) -> dict[str, str]:
    """Run some examples, all without `names`; make a ring that lives and one that was left when a test wants them."""
    xml = folder / "report.xml"
    selected = [f"{EXAMPLES}::{name}" for name in names] or [str(EXAMPLES)]
    command = [sys.executable, "-m", "pytest", *selected, f"--junitxml={xml}", "-p", "no:cacheprovider"]
    command.append(f"--basetemp={folder / 'tmp'}")
    made = folder / "made"
    environment = {**os.environ, "LEAKED_SHM": str(leaked), "RINGS_MADE": str(made)}
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(folder / "log", "wb"))
        child = stack.enter_context(
            subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=log, stderr=subprocess.STDOUT)
        )
        stack.callback(child.kill)
        stack.callback(sweep)
        deadline = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < deadline:
            if not made.exists() and made.with_name("wanted").exists():
                stack.enter_context(make_ring())
                other_version = stack.enter_context(make_ring())
                words = stack.enter_context(overwritten(other_version.announcement.ctl_name))
                words[1] += 1  # its layout version
                (folder / "theirs").mkdir()
                leave_ring(folder / "theirs")
                stack.callback(remove_notes, folder / "theirs")
                made.touch()
            time.sleep(0.01)
        for notes in folder.rglob("*.ring"):
            remove_notes(notes.parent)
    assert xml.exists(), (folder / "log").read_text()
    return {
        case.attrib["name"]: "\n".join(problem.text or "" for problem in case)
        for case in ElementTree.parse(xml).iter("testcase")
    }


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("test_leaks_fd", f"-> {EXAMPLES}"),
        ("test_leaks_thread", "thread <Thread(left-running"),
        ("test_leaks_child", "time.sleep(600)"),
        ("test_leaks_grandchild", "time.sleep(600)"),
        ("test_leaks_shm", "/dev/shm/mmc-test-"),
    ],
    ids=["fd", "thread", "child", "grandchild", "shm"],
)
def test_reports(verdicts: dict[str, str], name: str, reported: str) -> None:
    assert "the test left behind" in verdicts[name]
    assert reported in verdicts[name]
    assert len(verdicts[name].splitlines()) == 2, "one leak, one line"


@pytest.mark.parametrize(
    "name",
    [
        "test_clean",
        "test_uses_shared_service",
        "test_exempt",
        "test_thread_that_is_just_ending",
        "test_ignores_rings_of_another_session",
    ],
)
def test_passes(verdicts: dict[str, str], name: str) -> None:
    assert verdicts[name] == ""


def test_reports_both_names_of_a_ring(verdicts: dict[str, str]) -> None:
    assert verdicts["test_leaks_ring"].count("/dev/shm/mmc.") == 2


def test_session_end_counts_what_a_test_was_allowed(tmp_path: Path) -> None:
    verdicts = run_examples(tmp_path, "test_exempt", "test_uses_shared_service")
    assert verdicts["test_exempt"] == ""
    report = verdicts["test_uses_shared_service"]
    assert "the session left behind" in report
    assert f"-> {EXAMPLES}" in report
    assert "child" not in report, "a module-scoped fixture that cleans up is not blamed"
