from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator

import pytest

from scripts.bench import harness
from scripts.bench.harness import Bound, Row, Unavailable, compare, row

FAST = Row("put", "1 KiB", 2.0, "us", "memcpy", 4.0, 0.5)


def measure(num_rounds: int) -> Iterator[Row]:
    yield row("rounds", "", num_rounds, "", peer="one", peer_value=1)
    raise Unavailable("its peer is not installed")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr("sys.argv", ["bench", *arguments])
    bounds = [Bound("reach", "put", "1 KiB", "memcpy", 0.4)]
    sections = {"first": lambda _: [FAST], "second": measure}
    harness.main("a title", sections, lambda undo: sections, rounds=(5, 2), bounds=bounds)


def test_rows_before_a_missing_peer_stay_and_a_line_says_what_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    harness.tell_once.cache_clear()
    run(monkeypatch, "--json", "--quick")
    output = capsys.readouterr()
    assert [(each["name"], each["ours"]) for each in json.loads(output.out)] == [("put", 2.0), ("rounds", 2)]
    assert "second: rows are left out: its peer is not installed" in output.err


def nothing(num_rounds: int) -> Iterator[Row]:
    harness.require_extras(not_there="video", json="audio")
    yield FAST


def missing(undo: contextlib.ExitStack) -> dict[str, harness.Section]:
    raise Unavailable("redis-server is not installed")


@pytest.mark.parametrize(
    ("open_sections", "reason"),
    [
        (lambda undo: {"first": nothing}, "not_there is not installed: pip install '.[video]' in a checkout"),
        (missing, "redis-server is not installed"),
    ],
)
def test_an_area_that_can_measure_nothing_says_why_and_has_a_status_of_its_own(
    open_sections: Callable[[contextlib.ExitStack], dict[str, harness.Section]],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    harness.tell_once.cache_clear()
    monkeypatch.setattr("sys.argv", ["bench"])
    with pytest.raises(SystemExit) as ended:
        harness.main("a title", ["first"], open_sections, rounds=(1, 1))
    assert ended.value.code == harness.NOT_HERE
    output = capsys.readouterr()
    assert f"a title: nothing can be measured here: {reason}" in output.err
    assert output.out == ""


@pytest.mark.parametrize(("ratio", "is_floor", "is_met"), [(0.5, False, True), (0.4, False, False), (0.6, True, False)])
def test_a_bound_is_a_ceiling_or_a_floor(ratio: float, *, is_floor: bool, is_met: bool) -> None:
    bound = Bound("reach", "put", "1 KiB", "memcpy", ratio, is_floor)
    assert bound.concerns(FAST)
    assert bound.is_met(FAST) == is_met


def test_rounds_are_interleaved_and_the_unmeasured_do_not_count() -> None:
    order: list[str] = []

    def sampler(name: str, values: Iterator[float]) -> float:
        order.append(name)
        return next(values)

    a, b = iter([100.0, 1, 2, 3]), iter([100.0, 4, 5, 6])
    figures = compare({"a": lambda: sampler("a", a), "b": lambda: sampler("b", b)}, 3)
    assert figures == {"a": 2, "b": 5}
    assert "".join(order) == "abbaabba"
