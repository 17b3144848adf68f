"""Measures how large and how tidy the house is, and prints the table: `python scripts/house.py [--json]`.

Counts lines, rooms, arrows between rooms, public methods, first sentences, private names in tests, stand-ins, files
that name a counter and forms of an image; all of it is read off the sources, nothing is imported or run.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent
ROOTS = ("shm", "frontend", "engine", "worker")
FOLDERS = {"engine": "engine/mmcached/engine", "frontend": "frontend/mmcached/frontend"}
QUESTION = re.compile(
    r"(In |At |For |Of |By |With |From |To |On )?(which|who|whose|whom|whether|how|what|where|when|why)\b", re.I
)
STAND_IN = re.compile(r"(Engine|Worker|Workers|Rank)$")
COUNTERS = "shm/mmcached/wire/stats.py"
FORMS_PAGE = "docs/architecture.md"
FORM = re.compile(r"^\| \d+\. ", re.MULTILINE)


class Row(NamedTuple):
    """One line of the table."""

    what: str
    value: float
    reach: float
    """The largest value that we want."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    rows = list(measure())
    if parser.parse_args().json:
        json.dump([row._asdict() for row in rows], sys.stdout, indent=1)
        return
    width = max(len(row.what) for row in rows)
    for row in rows:
        sys.stdout.write(f"{row.what:{width}}  {row.value:>8}  <= {row.reach}\n")


def measure() -> Iterator[Row]:
    product = [file for root in ROOTS for file in sources(root)]
    trees = {file: parse(file) for file in product}
    code, docs = lines_of(product)
    yield Row("product: lines of code", code, 16500)
    yield Row("product: lines of docstrings", docs, 6000)
    for name, folder in FOLDERS.items():
        arrows = room_arrows(REPOSITORY / folder, folder.split("/", 1)[1].replace("/", "."))
        rooms = [room for room in arrows if (REPOSITORY / folder / room).is_dir()]
        yield Row(f"{name}/: rooms", len(rooms), 8 if name == "engine" else 7)
        yield Row(f"{name}/: rooms in a circle", len(in_circles(arrows)), 0)
    most, _ = max((public_methods(tree) for tree in trees.values()), default=(0, ""))
    yield Row("largest class: public methods", most, 25)
    questions = [file for file, tree in trees.items() if QUESTION.match(ast.get_docstring(tree) or "")]
    yield Row("modules that open with an indirect question", len(questions), 0)
    yield Row("files in scripts/", len(list(sources("scripts"))), 35)
    tests = list(sources("tests"))
    yield Row("tests: lines of code", lines_of(tests)[0], 31000)
    test_trees = [parse(file) for file in tests]
    yield Row("tests: uses of private names", sum(len(private_uses(tree)) for tree in test_trees), 58)
    yield Row("tests: stand-in engines and workers", sum(len(stand_ins(tree)) for tree in test_trees), 4)
    mentions = files_that_name(counters(trees[REPOSITORY / COUNTERS]), trees.values())
    yield Row("files that name a counter (median)", statistics.median(mentions.values()), 3)
    yield Row("forms of an image", len(FORM.findall((REPOSITORY / FORMS_PAGE).read_text())), 8)


def sources(folder: str) -> Iterator[Path]:
    return (file for file in sorted((REPOSITORY / folder).rglob("*.py")) if "__pycache__" not in file.parts)


def lines_of(files: Iterable[Path]) -> tuple[int, int]:
    """Return how many lines hold code, and how many belong to docstrings; blank lines and comments are neither."""
    code = docs = 0
    for file in files:
        doc_lines = docstring_lines(parse(file))
        for number, line in enumerate(file.read_text().splitlines(), 1):
            text = line.strip()
            if number in doc_lines:
                docs += bool(text)
            else:
                code += bool(text) and not text.startswith("#")
    return code, docs


@cache
def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str())) if node.end_lineno:
                lines.update(range(node.lineno, node.end_lineno + 1))
    return lines


def room_arrows(folder: Path, package: str) -> dict[str, set[str]]:
    """Return, for each room (a folder or a module) directly in `folder`, the rooms that it imports."""
    arrows: dict[str, set[str]] = {}
    for file in sorted(folder.rglob("*.py")):
        room = file.relative_to(folder).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        found = arrows.setdefault(room, set())
        for node in ast.walk(parse(file)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{package}."):
                found.add(node.module.removeprefix(f"{package}.").split(".")[0])
    return {room: found - {room} for room, found in arrows.items()}


def in_circles(arrows: dict[str, set[str]]) -> set[str]:
    """Return the rooms that can be reached from themselves."""

    def reach(room: str) -> set[str]:
        seen: set[str] = set()
        todo = list(arrows.get(room, ()))
        while todo:
            other = todo.pop()
            if other not in seen:
                seen.add(other)
                todo += arrows.get(other, ())
        return seen

    return {room for room in arrows if room in reach(room)}


def public_methods(tree: ast.Module) -> tuple[int, str]:
    """Return the class with the most public methods and properties, as (how many, its name)."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    counts = [
        (
            sum(isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.name[0] != "_" for part in node.body),
            node.name,
        )
        for node in classes
    ]
    return max(counts, default=(0, ""))


def private_uses(tree: ast.Module) -> list[str]:
    """Return the private names of others that a test module reads: attributes but those of `self`, and imports."""
    uses = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name) if is_private(name):
                uses.append(name)
            case ast.ImportFrom(names=names):
                uses += [alias.name for alias in names if is_private(alias.name)]
    return uses


def is_private(name: str) -> bool:
    public = ("_exit", "_replace")  # the os module's, and a named tuple's
    return name.startswith("_") and not name.endswith("__") and name not in public


def stand_ins(tree: ast.Module) -> list[str]:
    """Return the classes that stand in for an engine or a worker; a state machine that plays with one is none."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and STAND_IN.search(node.name)]
    return [each.name for each in classes if not any(ast.unparse(base).endswith("Machine") for base in each.bases)]


def counters(tree: ast.Module) -> set[str]:
    """Return the names of the fields of the statistics records that are counters or gauges."""
    return {
        node.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if re.search(r"\b(Metric|Gauge)\b|_of_cache", ast.unparse(node.annotation))
    }


def files_that_name(names: set[str], trees: Iterable[ast.Module]) -> Counter[str]:
    """Return, for each name, in how many modules it is a variable, an attribute or a keyword argument."""
    found: Counter[str] = Counter()
    for tree in trees:
        found.update(names & {name for node in ast.walk(tree) for name in identifiers(node)})
    return found


def identifiers(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)) | ast.arg(arg=name):
            yield name


if __name__ == "__main__":
    main()
