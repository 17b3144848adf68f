"""Notes of test runs become rows: the newest run of a host's version replaces the row of the former one."""

from __future__ import annotations

from scripts.tested_with import COLUMNS, PAGE, merged

PAGE_TEXT = """# Tested with

| host | version |
|---|---|
| vllm | 0.32.0 | 3.11 | 2.13 | 40 | 2026-01-01 | aaaa |

After it.
"""


def row(host: str, version: str, tests: str) -> dict[str, str]:
    return dict(zip(COLUMNS, (host, version, "3.11", "2.13", tests, "2026-02-02", "bbbb"), strict=True))


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
