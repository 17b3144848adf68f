"""Lints the first paragraphs of docstrings of the product: `python scripts/lint_prose.py`.

`SUBSTITUTES` has the phrases that do not stand there, and what to write instead: the noun of the field for a pronoun,
and the plain word for a turn of phrase.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
ROOTS = ("shm", "frontend", "engine", "worker")
SUBSTITUTES = {
    r"who (is|has|was|holds?|puts?|reads?|takes?|waits?|writes?|comes?|asks?)": "the client, the reader, the process",
    r"whoever|somebody|someone|anybody|anyone|everybody|everyone": "the client, the reader, another process",
    r"nobody|no one": "no client, no reader, no process",
    r"what (is|are|was|were|has|have|had)": "the noun: the record, the items, the rows",
    r"whatever|whichever": "“any” or “every” with the noun",
    r"the ones? that|one that": "the noun",
    r"with whom|by whom|to whom": "the noun",
    r"else than": "other than",
    r"so many|so much": "`n` items, at most `n` bytes",
    r"as of": "as, like",
    r"of late|lately": "recently",
    r"that (cannot|can't) be(?=[.,;:)]|$)": "invalid",
    r"(that|which) (is|are|was) none": "missing, invalid, other",
    r"for ever": "for good, without end",
    r"by and by": "in parts",
    r"(its|their) own business": "the rule itself",
    r"in vain|for naught": "without effect",
    r"thereof|therein|whereof|wherein|thereby|hereby": "of it, in it, by it",
    r"may say anything": "is invalid",
    r"more is none": "a larger count is invalid",
}
"""Pattern -> replacement, both as they are shown."""

_ANY = re.compile("|".join(SUBSTITUTES))


def main() -> int:
    files = [file for root in ROOTS for file in sorted((REPOSITORY / root).rglob("*.py"))]
    found = list(problems(files))
    for problem in found:
        sys.stdout.write(problem + "\n")
    return bool(found)


def problems(files: Iterable[Path]) -> Iterator[str]:
    """Yield a line for each phrase in a first paragraph: file, line, phrase, and the words to write instead."""
    for file in files:
        for line, paragraph in first_paragraphs(file.read_text()):
            for phrase, instead in phrases_in(paragraph):
                yield f"{file}:{line}: “{phrase}”: write {instead}"


def phrases_in(paragraph: str) -> Iterator[tuple[str, str]]:
    """Yield each phrase of `SUBSTITUTES` in a paragraph, and what to write instead."""
    text = paragraph[:1].lower() + paragraph[1:]
    if _ANY.search(text):
        for pattern, instead in SUBSTITUTES.items():
            for match in re.finditer(rf"\b(?:{pattern})(?!\w)", text):
                yield match.group(), instead


def first_paragraphs(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and first paragraph of each docstring of a module, its classes and its functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                line = getattr(node, "lineno", 1)
                yield line, " ".join(text.split("\n\n")[0].split())


if __name__ == "__main__":
    sys.exit(main())
