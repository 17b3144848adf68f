"""The records of decisions have one form, and their index names each of them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.house import REPOSITORY

FOLDER = REPOSITORY / "docs" / "decisions"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
NUMBERS = [record.name[:3] for record in RECORDS]
FORM = re.compile(
    r"# (?P<number>\d{3}) (?P<title>.+)\n\n"
    r"- Date: \d{4}-\d\d-\d\d\n- Area: (?P<area>.+)\n- Status: (?:accepted|superseded by (?P<successor>\d{3}))\n\n"
    r"\*\*Context:\*\* .+\n\n\*\*Decision:\*\* .+\n\n\*\*Consequences:\*\* .+",
    re.DOTALL,
)


def listed() -> dict[str, tuple[str, str]]:
    """Return area and title of each file that the index names."""
    found, area = {}, ""
    for heading, title, path in re.findall(
        r"^## (.+)$|^\* \[(.+)\]\((.+)\)$", (FOLDER / "README.md").read_text(), re.MULTILINE
    ):
        area = heading or area
        if path:
            found[path] = area, title
    return found


def test_the_index_names_every_record() -> None:
    assert len(RECORDS) > 10
    assert sorted(listed()) == [record.name for record in RECORDS]
    assert [number for number, times in Counter(NUMBERS).items() if times > 1] == []


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_record_says_what_it_is(record: Path) -> None:
    """Number, area and title are those of its file and of the index."""
    form = FORM.match(record.read_text())
    assert form is not None
    area, title = listed()[record.name]
    assert (form["number"], form["area"], form["title"]) == (record.name[:3], area.lower(), title)
    assert form["successor"] is None or form["successor"] in NUMBERS
