"""The rows of a name are found under it, the newest names stay, and nothing fails where they cannot be kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmcached.cache.name_files import MAX_NAMES, differences, name_in, note_name, read_name
from mmcached.cache.output_names import ROWS, output_name
from mmcached.cache.store_keys import output_key

NOTHING: dict[str, Any] = dict.fromkeys(ROWS)
TORCH = [NOTHING | {"host": "vllm", "libraries": {"torch": version, "cuda": "13.0"}} for version in ("2.13", "2.14")]


def test_rows_are_found_under_their_name_and_compared(run_dir: Path) -> None:
    one, other = (note_name(run_dir, rows) for rows in TORCH)
    assert one == output_name(TORCH[0]) != other
    found = [read_name(run_dir, name_in(output_key(name, "item")) or "") for name in (one, other)]
    assert found == TORCH
    assert list(differences(*found)) == [("libraries.torch", "2.13", "2.14")]  # type: ignore[arg-type]


def test_the_oldest_names_are_dropped(run_dir: Path) -> None:
    names = [note_name(run_dir, NOTHING | {"weights": number}) for number in range(MAX_NAMES)]
    assert note_name(run_dir, NOTHING | {"weights": 0}) == names[0], "it is the newest again"
    newest = [note_name(run_dir, NOTHING | {"weights": -number}) for number in (1, 2)]
    assert [read_name(run_dir, name) is None for name in names[:4]] == [False, True, True, False]
    assert all(read_name(run_dir, name) for name in newest)
    assert len(list((run_dir / "names").iterdir())) == MAX_NAMES


def test_a_name_is_given_where_it_cannot_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for run_dir in (tmp_path / "nobody", tmp_path / "file"):
        assert note_name(run_dir, TORCH[0]) == output_name(TORCH[0])
        assert read_name(run_dir, output_name(TORCH[0])) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", "no JSON"])
def test_another_file_is_no_name(run_dir: Path, text: str) -> None:
    name = note_name(run_dir, TORCH[0])
    (run_dir / "names" / f"{name}.json").write_text(text)
    assert read_name(run_dir, name) is None
