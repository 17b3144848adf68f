"""Notes of test runs become rows: the newest run of a host's version replaces the row of the former one."""

from __future__ import annotations

import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from scripts import tested_with
from scripts.tested_with import (
    COLUMNS,
    DISTRIBUTIONS,
    ELSEWHERE,
    PAGE,
    commit_of_code,
    merged,
    note,
    rows_of,
    version_of_files,
)
from tests.house import REPOSITORY

PAGE_TEXT = """# Tested with

| host | version |
|---|---|
| vllm | 0.32.0 | 3.11 | 2.13 | 40 | 2026-01-01 | aaaa |

After it.
"""


def row(host: str, version: str, tests: str, *, date: str = "2026-02-02") -> dict[str, str]:
    return dict(zip(COLUMNS, (host, version, "3.11", "2.13", tests, date, "bbbb"), strict=True))


def test_a_newer_run_replaces_its_row_and_others_are_added_in_order() -> None:
    page = merged(PAGE_TEXT, [row("vllm", "0.32.0", "45"), row("vllm", "0.9.1", "7"), row("sglang", "0.5.23", "34")])
    table = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert [line.split(" | ")[:2] + line.split(" | ")[4:5] for line in table] == [
        ["| sglang", "0.5.23", "34"],
        ["| vllm", "0.9.1", "7"],
        ["| vllm", "0.32.0", "45"],
    ]
    assert page.endswith("\nAfter it.\n")
    assert merged(page, []) == page


def test_the_page_has_the_columns() -> None:
    head = next(line for line in PAGE.read_text().splitlines() if line.startswith("| host"))
    assert [cell.strip().lower() for cell in head.strip("|").split("|")] == list(COLUMNS)


def test_an_older_note_leaves_the_row_of_a_newer_run() -> None:
    assert merged(PAGE_TEXT, [row("vllm", "0.32.0", "45", date="2025-12-31")]) == PAGE_TEXT
    assert "| 45 |" in merged(PAGE_TEXT, [row("vllm", "0.32.0", "45", date="2026-01-01")])


def test_only_a_run_of_one_commit_leaves_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    def is_noted(began_at: str | None) -> bool:
        note("redis", version="7.0.15", num_passed=3, began_at=began_at)
        written = tmp_path / "build" / "tested" / "redis.json"
        found = written.exists()
        written.unlink(missing_ok=True)
        assert found != ("redis: no note" in capsys.readouterr().out)
        return found

    monkeypatch.setattr(tested_with, "REPOSITORY", tmp_path)
    monkeypatch.setattr(tested_with, "NOTES", tmp_path / "build" / "tested")
    (tmp_path / ".gitignore").write_text("build\n")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message=a")
    first = commit_of_code()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "tested-with.md").write_text("a page is no code")
    assert first is not None
    assert is_noted(first)
    assert not is_noted(None)
    (tmp_path / "new.py").write_text("")
    assert commit_of_code() is None
    assert not is_noted(first)
    git("add", ".")
    git("commit", "--quiet", "--message=b")
    assert not is_noted(first)

    page = tmp_path / "docs" / "tested-with.md"
    page.write_text(PAGE_TEXT)
    monkeypatch.setattr(tested_with, "PAGE", page)
    note("valkey", version="8.1.1", num_passed=3, began_at=commit_of_code())
    git("commit", "--quiet", "--amend", "--message=another")
    tested_with.main()
    assert "valkey: its note is left out" in capsys.readouterr().out
    assert page.read_text() == PAGE_TEXT


def test_every_folder_of_a_host_leaves_notes_and_every_row_has_a_host() -> None:
    tests = REPOSITORY / "tests"
    assert {file.parent.name for file in tests.glob("hosts/*/test_*.py")} <= set(DISTRIBUTIONS)
    assert all((tests / folder).is_dir() for folder in ELSEWHERE.values())
    assert {each["host"] for each in rows_of(PAGE.read_text())} <= {*DISTRIBUTIONS, *ELSEWHERE}


def test_files_of_a_host_are_named_by_release_and_content(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "b.py").write_text("2")
    of_files = version_of_files(tmp_path, ["a.py", "b.py"])
    assert of_files == f"files {sha256(b'12').hexdigest()[:8]}"
    (tmp_path / "version.py").write_text('# the release\n__version__ = "1.3.0rc4"\n')
    assert version_of_files(tmp_path, ["a.py", "b.py"]) == f"1.3.0rc4 {of_files}"
    (tmp_path / "b.py").write_text("3")
    assert version_of_files(tmp_path, ["a.py", "b.py"]) != f"1.3.0rc4 {of_files}"
