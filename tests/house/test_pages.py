"""The pages are true to the tree: what they link to and name is there."""

from __future__ import annotations

import re

from tests.house import REPOSITORY

PAGES = [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "docs").rglob("*.md"))]
ROOTS = {path.name for path in REPOSITORY.iterdir() if path.is_dir()}
HISTORY = {"CHANGELOG.md"}  # it names what there was


def test_links_lead_somewhere() -> None:
    links = ((page, target) for page in PAGES for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()))
    assert [(page.name, target) for page, target in links if not (page.parent / target).exists()] == []


def test_files_that_are_named_exist() -> None:
    names = re.compile(r"`([\w./-]+/[\w./-]*)`")
    named = ((page, name) for page in PAGES if page.name not in HISTORY for name in names.findall(page.read_text()))
    ours = ((page, name) for page, name in named if name.split("/")[0] in ROOTS)
    assert [(page.name, name) for page, name in ours if not (REPOSITORY / name).exists()] == []


def test_the_tree_names_what_is_there() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text()
    (tree,) = re.findall(r"^```text tree\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    folders = [line.split()[0] for line in tree.splitlines()]
    assert len(folders) > 10
    assert [folder for folder in folders if not (REPOSITORY / folder).is_dir()] == []
