"""The pages are true to the tree: what they link to and name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.house import REPOSITORY

PAGES = [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "docs").rglob("*.md"))]
ROOTS = {path.name for path in REPOSITORY.iterdir() if path.is_dir()}
HISTORY = {"CHANGELOG.md"}  # it names what there was


def page_id(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in HISTORY], ids=page_id)
def test_files_that_are_named_exist(page: Path) -> None:
    named = {name for name in re.findall(r"`([\w./-]+/[\w./-]*)`", page.read_text()) if name.split("/")[0] in ROOTS}
    assert sorted(name for name in named if not (REPOSITORY / name).exists()) == []


def test_the_tree_names_what_is_there() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text()
    (tree,) = re.findall(r"^```text tree\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    folders = [line.split()[0] for line in tree.splitlines()]
    assert len(folders) > 10
    assert [folder for folder in folders if not (REPOSITORY / folder).is_dir()] == []
