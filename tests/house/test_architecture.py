"""What the page of the architecture says is somewhere is defined there."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.house import REPOSITORY

PAGE = REPOSITORY / "docs" / "architecture.md"


class Answer(NamedTuple):
    """A line of the page's table.

    Attributes:
        file: the path of a module or folder, relative to the repository.
        name: a class, function or method that is defined there; empty where none is named.
    """

    file: Path
    name: str


def answers() -> dict[str, Answer]:
    lines = re.findall(r"^\| ([^|`]+) \| `([^`|]+)` \| (?:`([^`|]+)`)?[^|]*\|$", PAGE.read_text(), re.MULTILINE)
    return {what: Answer(REPOSITORY / file, name) for what, file, name in lines}


@pytest.mark.parametrize("question", answers())
def test_the_answer_is_defined_where_the_page_says(question: str) -> None:
    file, name = answers()[question]
    assert file.exists()
    if name:
        assert name in defined_names(ast.parse(file.read_text()).body), name


def defined_names(body: list[ast.stmt]) -> set[str]:
    """Return the names of the functions, classes, methods (as `Class.method`) and variables of a module."""
    names = set()
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner}" for inner in defined_names(node.body)}
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names
