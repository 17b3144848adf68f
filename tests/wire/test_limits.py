"""The table of limits: complete, equal to the documentation, and believed by the configuration."""

from __future__ import annotations

from pathlib import Path

from mmcached.wire.config import ServiceConfig
from mmcached.wire.limits import LIMITS, LimitsConfig, table_lines

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"


def test_the_table_lists_every_setting_of_its_section() -> None:
    settings = {f"limits.{name}" for name in LimitsConfig.__struct_fields__}
    assert settings == {name for name in LIMITS if name.startswith("limits.")}


def test_the_page_shows_the_table() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    assert lines == list(table_lines(ServiceConfig().limit_values()))
