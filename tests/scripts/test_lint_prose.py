"""The lint of first paragraphs finds each phrase of its table, and lets plain sentences through."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.lint_prose import first_paragraphs, phrases_in, problems

PLANTED = (
    "Whoever holds a lease may read.",
    "Ends claims that nobody takes up.",
    "Return what was read.",
    "A reader who holds a lease.",
    "More is none; a row that was read while it was written may say anything.",
    "Any error else than a typed refusal marks the socket as broken.",
    "Drop so many records.",
    "Count the hits of late.",
    "Refuse a size that cannot be.",
    "Return the keys; one that is unknown is skipped.",
)

PLAIN = (
    "Return the records that the client has put, or None.",
    "Drop the arguments that are None.",
    "Refuse a call that cannot be cancelled.",
    "Return whether a reader can attach; the next one waits.",
)


@pytest.mark.parametrize("sentence", PLANTED)
def test_a_planted_sentence_is_found(sentence: str) -> None:
    assert list(phrases_in(sentence))


@pytest.mark.parametrize("sentence", PLAIN)
def test_a_plain_sentence_is_not(sentence: str) -> None:
    assert not list(phrases_in(sentence))


def test_a_problem_names_file_line_and_substitute(tmp_path: Path) -> None:
    file = tmp_path / "planted.py"
    file.write_text(
        '"""Reads records."""\n\n\ndef read():\n    """Return the row, as of a ring.\n\n    so many\n    """\n'
    )
    assert list(problems([file])) == [f"{file}:4: “as of”: write as, like"]


def test_only_first_paragraphs_are_read() -> None:
    assert list(first_paragraphs('"""First\nlines.\n\nSecond."""\nX = "who is"\n')) == [(1, "First lines.")]
