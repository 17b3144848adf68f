"""Figures by the names of clients: counters go on with the next frontend, and a name keeps its row."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmcached.shm.stats.page import StatsPage, StatsPageReader, StatsPageWriter
from mmcached.wire.stats import ClientStats, FrontendStats, RoleName

FRONTEND = RoleName("frontend")
Figures = dict[str, tuple[int, int, int]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return StatsPage.create(tmp_path / "stats.page").path


def publish(path: Path, *all_figures: Figures) -> None:
    """Be a frontend that has these figures, one after the other."""
    with StatsPageWriter(path, FRONTEND) as writer:
        for figures in all_figures:
            by_client = {name: ClientStats(hits=a, misses=b, puts=c) for name, (a, b, c) in figures.items()}
            writer.publish(FrontendStats(by_client=by_client))


def shown(path: Path) -> Figures:
    with StatsPageReader(path) as reader:
        stats = reader.read()[FRONTEND].stats
    assert isinstance(stats, FrontendStats)
    return {name: (each.hits, each.misses, each.puts) for name, each in stats.by_client.items()}


def test_what_is_published_is_read(path: Path) -> None:
    longest = "x" * 32
    publish(path, {}, {"vllm": (1, 0, 0)}, {"vllm": (1 << 40, 2, 3), longest: (0, 0, 1)})
    assert shown(path) == {"vllm": (1 << 40, 2, 3), longest: (0, 0, 1)}


def test_counters_go_on_with_the_next_frontend(path: Path) -> None:
    publish(path, {"a": (1, 2, 3), "b": (4, 0, 0)})
    publish(path, {})
    assert shown(path) == {"a": (1, 2, 3), "b": (4, 0, 0)}
    publish(path, {"c": (1, 1, 1)}, {"c": (2, 1, 1), "b": (1, 1, 1)})
    assert shown(path) == {"a": (1, 2, 3), "b": (5, 1, 1), "c": (2, 1, 1)}


def test_names_for_which_no_row_is_left_are_the_others(path: Path) -> None:
    first = {f"name-{number}": (1, 0, 0) for number in range(63)}
    publish(path, first | {"other": (7, 0, 0)})
    publish(path, {"late": (1, 0, 0)}, {"late": (1, 0, 0), "later": (2, 0, 0), "other": (4, 0, 0), "name-9": (1, 0, 0)})
    assert shown(path) == first | {"name-9": (2, 0, 0), "other": (14, 0, 0)}


def test_a_name_that_was_not_written_to_its_end_is_nobodys(path: Path) -> None:
    publish(path, {"a": (1, 0, 0)})
    with path.open("r+b") as page:  # the last slot; row 0: the others, row 1: "a"
        page.seek(-4096 + 2 * 64 + 8, 2)
        page.write(b"of-a-dead-frontend")
    publish(path, {"b": (2, 0, 0)})
    assert shown(path) == {"a": (1, 0, 0), "b": (2, 0, 0)}
