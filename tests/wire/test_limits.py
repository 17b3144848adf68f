"""The table of limits: complete, equal to the documentation, and believed by the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

from mmcached.wire.config import ServiceConfig
from mmcached.wire.limits import LIMITS, LimitsConfig

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"


def test_the_table_lists_every_setting_of_its_section() -> None:
    settings = {f"limits.{name}" for name in LimitsConfig.__struct_fields__}
    assert settings == {name for name in LIMITS if name.startswith("limits.")}


def test_the_page_shows_the_table() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    assert lines == list(_table_lines())


def _table_lines() -> Iterator[str]:
    yield "| setting | default | range | bounds | beyond it |"
    yield "|---|---|---|---|---|"
    for name, limit in LIMITS.items():
        value = f"{attrgetter(name)(ServiceConfig()):,} {limit.unit}".rstrip()
        yield f"| `{name}` | {value} | {limit.low:,} … {limit.high:,} | {limit.bounds} | {limit.beyond} |"
