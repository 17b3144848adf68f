"""Reads the pages: their code blocks by language, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.house import REPOSITORY

PAGES = [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```([a-z]\w*)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """Code on a page."""

    page: str
    language: str
    text: str


def blocks() -> Iterator[Block]:
    """Yield all blocks of code; drawings and output ("text", or no language) are none."""
    for page in PAGES:
        for language, _, text in _BLOCK.findall(page.read_text()):
            if language != "text":
                yield Block(str(page.relative_to(REPOSITORY)), language, text)


def code(page: Path, language: str) -> list[str]:
    return [
        block.text
        for block in blocks()
        if block.page == str(page.relative_to(REPOSITORY)) and block.language == language
    ]


def shell_lines(text: str) -> Iterator[list[str]]:
    """Yield each command of a block as words, without its variables, comment and what follows `|`, `;` or `&`."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;()<>")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # a quotation over several lines, such as the JSON of a request
            continue
        end = next((index for index, word in enumerate(words) if set(word) <= set("|&;()<>")), len(words))
        command = words[:end]
        while command and re.match(r"[A-Z_]+=", command[0]):
            del command[0]
        if command:
            yield command
