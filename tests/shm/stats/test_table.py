"""Tables of the stats page: counters go on with the next process of the role, and a key keeps its row."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmcached.shm.stats.layout import TABLES, Fields
from mmcached.shm.stats.page import StatsPage, StatsPageReader, StatsPageWriter
from mmcached.wire.figures import StatsRecord
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
    longest = "x" * 30 + "ä"
    publish(path, {}, {"vllm": (1, 0, 0)}, {"vllm": (1 << 40, 2, 3), longest: (0, 0, 1)})
    assert shown(path) == {"vllm": (1 << 40, 2, 3), longest: (0, 0, 1)}


def test_a_record_may_have_one_figure() -> None:
    class OneFigure(StatsRecord, frozen=True):
        hits: int = 0

    assert Fields(OneFigure).values(OneFigure(hits=3)) == (3,)


@pytest.mark.parametrize("key", ["x" * 31 + "ä", ""])
def test_a_key_that_fits_no_row_is_the_others(path: Path, key: str) -> None:
    publish(path, {"a": (1, 0, 0), key: (1, 2, 3)})
    assert shown(path) == {"a": (1, 0, 0), "other": (1, 2, 3)}


def test_counters_go_on_with_the_next_frontend(path: Path) -> None:
    publish(path, {"a": (1, 2, 3), "b": (4, 0, 0)})
    publish(path, {})
    assert shown(path) == {"a": (1, 2, 3), "b": (4, 0, 0)}
    publish(path, {"c": (1, 1, 1)}, {"c": (2, 1, 1), "b": (1, 1, 1)})
    assert shown(path) == {"a": (1, 2, 3), "b": (5, 1, 1), "c": (2, 1, 1)}


def test_keys_for_which_no_row_is_left_are_the_others(path: Path) -> None:
    first = {f"name-{number}": (1, 0, 0) for number in range(63)}
    publish(path, first | {"other": (7, 0, 0)})
    publish(path, {"late": (1, 0, 0)}, {"late": (1, 0, 0), "later": (2, 0, 0), "other": (4, 0, 0), "name-9": (1, 0, 0)})
    assert shown(path) == first | {"name-9": (2, 0, 0), "other": (14, 0, 0)}


def test_a_key_that_was_not_written_to_its_end_is_ignored(path: Path) -> None:
    publish(path, {"a": (1, 0, 0)})
    with path.open("r+b") as page:  # row 0: the others, row 1: "a"
        table = TABLES[FRONTEND][0]
        page.seek(8 * (table.first + 2 * table.row_words + 1))
        page.write(b"of-a-dead-frontend")
    publish(path, {"b": (2, 0, 0)})
    assert shown(path) == {"a": (1, 0, 0), "b": (2, 0, 0)}
