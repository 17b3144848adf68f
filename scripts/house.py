"""Prints the size of each package beside its limit: `python scripts/house.py [--json]`.

The limits are the sizes when they were last set, rounded up. A package that outgrows its limit is made smaller, or gets
another limit, with the reason in the commit. It only reports. All is read from the sources; nothing is imported or run.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent
MAX_MODULE_LINES = 350
MAX_FUNCTION_LINES = 60

PACKAGES = {
    "shm/mmcached/wire": (3_500, 1_100),
    "shm/mmcached/shm": (4_900, 1_600),
    "shm/mmcached/cache": (1_650, 550),
    "frontend/mmcached/frontend": (3_300, 900),
    "frontend/mmcached/gateway": (4_500, 1_350),
    "frontend/mmcached/client": (5_300, 1_600),
    "frontend/mmcached/second_level": (2_500, 600),
    "frontend/mmcached/pictures": (500, 200),
    "frontend/mmcached/clips": (900, 300),
    "frontend/mmcached/cli": (7_700, 1_450),
    "engine/mmcached/engine": (5_400, 1_400),
    "engine/mmcached/compat": (2_000, 700),
    "engine/mmcached/integrations": (3_900, 1_050),
    "worker/mmcached/worker": (4_250, 1_100),
    "scripts": (13_000, 1_950),
    "tests": (66_300, 3_200),
}
"""Folder -> the most lines of code, and of docstrings."""


class Row(NamedTuple):
    """A line of the table."""

    what: str
    value: int
    limit: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    rows = list(measure())
    if parser.parse_args().json:
        json.dump([row._asdict() for row in rows], sys.stdout, indent=1)
        return
    width = max(len(row.what) for row in rows)
    for row in rows:
        mark = "" if row.value <= row.limit else "  over"
        sys.stdout.write(f"{row.what:{width}}  {row.value:>7,} of {row.limit:>7,}{mark}\n")


def measure() -> Iterator[Row]:
    for package, (code_limit, docs_limit) in PACKAGES.items():
        code, docs = lines_of(sources(package))
        yield Row(f"{package}: lines of code", code, code_limit)
        yield Row(f"{package}: lines of docstrings", docs, docs_limit)
    product = [file for package in PACKAGES if "/mmcached/" in package for file in sources(package)]
    yield Row(f"modules over {MAX_MODULE_LINES} lines", sum(map(is_long, product)), 0)
    functions = [node for file in product for node in ast.walk(parse(file)) if isinstance(node, FUNCTIONS)]
    yield Row(
        f"functions over {MAX_FUNCTION_LINES} lines", sum(num_lines(node) > MAX_FUNCTION_LINES for node in functions), 0
    )
    yield Row("names of public classes in several modules", len(repeated_classes(product)), 0)


FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def sources(folder: str) -> list[Path]:
    return [file for file in sorted((REPOSITORY / folder).rglob("*.py")) if "__pycache__" not in file.parts]


def lines_of(files: Iterable[Path]) -> tuple[int, int]:
    """Return the numbers of lines of code, and of docstrings; blank lines and comments are neither."""
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


def is_long(file: Path) -> bool:
    return file.read_text().count("\n") > MAX_MODULE_LINES


def num_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


def repeated_classes(files: Iterable[Path]) -> set[str]:
    """Return the names of public classes that more than one module defines."""
    homes = Counter(
        node.name
        for file in files
        for node in parse(file).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return {name for name, num_homes in homes.items() if num_homes > 1}


if __name__ == "__main__":
    main()
