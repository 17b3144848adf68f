"""The index of the decision records names each of them."""

from __future__ import annotations

import re
from collections import Counter

from tests.house import REPOSITORY

FOLDER = REPOSITORY / "docs" / "decisions"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
NUMBERS = [record.name[:3] for record in RECORDS]


def test_the_index_names_every_record() -> None:
    listed = re.findall(r"^\* \[.+\]\((.+)\)$", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert len(RECORDS) > 10
    assert sorted(listed) == [record.name for record in RECORDS]
    assert [number for number, times in Counter(NUMBERS).items() if times > 1] == []
