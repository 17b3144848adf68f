"""Figures are summed up, named and refused in the words that people read."""

from __future__ import annotations

import pytest

from mmcached.cli.bench.command import parse_clients, parse_sizes
from mmcached.cli.bench.figures import SIZES, CallFigure, CallKind, figure, size_text, time_text
from mmcached.cli.bench.table import tables, verdict
from mmcached.wire.errors import ConfigError
from tests.cli.fake_view import drawn

FIGURES = [
    CallFigure(kind, num_clients, num_bytes, 100, us * num_clients, 3 * us * num_clients, 1e6 / us)
    for num_clients in (1, 4)
    for num_bytes in (4096, 4_928_307)
    for kind, us in (
        (CallKind.VIEW, 16.0),
        (CallKind.PUT, 1500.0),
        (CallKind.MEMCPY, 320.0),
        (CallKind.REDIS_GET, 1280.0),
    )
]


def test_a_figure_is_of_all_calls_of_all_clients() -> None:
    found = figure(CallKind.VIEW, 4096, [[10.0, 20.0], [30.0, 30.0]])
    assert (found.num_clients, found.num_calls, found.p50_us) == (2, 4, 25.0)
    assert found.calls_per_s == pytest.approx(2e6 / 30 + 1e6 / 30)


def test_the_tables_fit_into_80_columns() -> None:
    slow = [CallFigure(kind, 64, num_bytes, 100, 123e6, 456e6, 1.0) for kind in CallKind for num_bytes in SIZES]
    text = drawn(*tables(slow), width=80)
    assert text.count("123 s") == text.count("456 s") == len(CallKind) * len(SIZES)
    assert "get_or_compute, new" in text
    assert "…" not in text


def test_a_verdict_compares_a_hit_with_what_was_measured() -> None:
    assert verdict(FIGURES) == "a hit of 4.7 MiB in place: 16 µs, 0.05 × memcpy, 0.013 × Redis GET"
    without = [each for each in FIGURES if each.kind != CallKind.REDIS_GET]
    assert verdict(without) == "a hit of 4.7 MiB in place: 16 µs, 0.05 × memcpy"


@pytest.mark.parametrize(("us", "text"), [(0.51, "0.5 µs"), (16.4, "16 µs"), (1400.0, "1.4 ms"), (2.5e6, "2.5 s")])
def test_times_are_for_people(us: float, text: str) -> None:
    assert time_text(us) == text


def test_sizes_and_clients_are_read_in_any_order() -> None:
    assert parse_sizes("1MiB, 4KiB,4096B") == [4096, 1 << 20]
    assert parse_clients("4, 1,4") == [1, 4]
    assert size_text(4_928_307) == "4.7 MiB"


@pytest.mark.parametrize("text", ["", "0B", "4", "x", "1.5B", "2GiB", "4KiB,,"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="sizes"):
        parse_sizes(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "257", "1.5", "one"])
def test_what_is_no_number_of_clients_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="clients"):
        parse_clients(text)
