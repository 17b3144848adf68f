"""Formats the outcomes: a table for the page, rows for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from scripts.studies.simulate_fleet.cases import Case
from scripts.studies.simulate_fleet.levels import Outcome

COLUMNS = (
    "fleet",
    "first level finds",
    "second level finds",
    "still encoded",
    "encoder time that the second level saves, for each host",
    "the second level carries",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One fleet with one second level; shares in percent of what was asked for, times per hour.

    Attributes:
        saved_first_s: seconds that each host's encoder need not run, thanks to the first level.
        saved_second_s: and thanks to the second.
        saved_fleet_s: thanks to the second, in the whole fleet.
        bytes_per_s: what the second level carries.
    """

    varied: str
    name: str
    hosts: int
    images_per_s: float
    exponent: float
    affinity: float
    own: float
    first_gib: float
    second_gib: float
    seed: int
    asked: int
    first: float
    second: float
    encoded_without: float
    encoded: float
    saved_first_s: float
    saved_second_s: float
    saved_fleet_s: float
    bytes_per_s: float


def rows_of(case: Case, outcomes: Iterable[Outcome], seed: int, encode_s: float) -> Iterator[Row]:
    load = case.load
    for each in outcomes:
        saved = [each.encoder_s_an_hour(count, encode_s) for count in (each.first, each.second)]
        yield Row(
            varied=case.varied,
            name=case.name + (f", {each.second_gib:,.0f} GiB behind" if len(case.second_gib) > 1 else ""),
            hosts=load.hosts,
            images_per_s=load.images_per_s,
            exponent=load.exponent,
            affinity=load.affinity,
            own=load.own,
            first_gib=case.first_gib,
            second_gib=each.second_gib,
            seed=seed,
            asked=each.asked,
            first=each.share(each.first),
            second=each.share(each.second),
            encoded_without=100 - each.share(each.first),
            encoded=each.share(each.encoded),
            saved_first_s=saved[0] / load.hosts,
            saved_second_s=saved[1] / load.hosts,
            saved_fleet_s=saved[1],
            bytes_per_s=each.bytes_per_s,
        )


def table_lines(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of the page's table."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---" * len(COLUMNS) + "|"
    for row in rows:
        cells = (
            row.name,
            f"{row.first:.1f} %",
            f"{row.second:.1f} %",
            f"{row.encoded:.1f} %",
            f"{row.saved_second_s:,.0f} s/h",
            f"{row.bytes_per_s / 1e9:,.2f} GB/s",
        )
        yield f"| {' | '.join(cells)} |"


def rule_lines(pairs: Iterable[tuple[float, Outcome, Outcome]]) -> Iterator[str]:
    """Yield the lines of the table that compares the first level's rules."""
    yield "| first level of each of 10 hosts | LRU: first level finds, second level finds | the store's rule |"
    yield "|---|---|---|"
    for gib, *by_rule in pairs:
        cells = (f"{each.share(each.first):.1f} %, {each.share(each.second):.1f} %" for each in by_rule)
        yield f"| {gib:.0f} GiB | {' | '.join(cells)} |"
