"""Dashboard and alerts name metrics, labels and values that a service exports. Against a living one: test_watching."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from mmcached.cli.watch.metrics import make_registry
from mmcached.wire.stats import ClientStats, FrontendStats, RoleName, TenantStats
from tests.cli.fake_view import ENGINE, FRONTEND, FakeView, a_role, page_of
from tests.deploy.metric_uses import RULES, RULES_TEST, all_uses, unknown
from tests.house import REPOSITORY

FIGURES = REPOSITORY / "tests" / "cli" / "watch" / "metrics.txt"
"""A metrics page with every figure that roles count; a test of the page keeps it true."""


@pytest.fixture
def page(run_dir: Path) -> str:
    """A page with all that roles count, and with what the supervisor says of itself."""
    roles = [FRONTEND, ENGINE, RoleName("engine", 1), RoleName("worker")]
    given = [a_role(role, os.getpid(), "running") for role in roles]
    with page_of(run_dir, *roles) as (reader, writers):
        tables = FrontendStats(by_client={"vllm": ClientStats(hits=1)}, by_tenant={"t": TenantStats(saved_us=1)})
        writers[FRONTEND].publish(tables)
        registry = make_registry(FakeView(run_dir, given=given), reader.read)
        return FIGURES.read_text() + generate_latest(registry).decode()


def test_what_is_used_is_exported(page: str) -> None:
    assert len(all_uses()) > 50
    assert unknown(page) == []


def test_each_alert_is_tested() -> None:
    alerts = set(re.findall(r"alert: (\w+)", RULES.read_text()))
    assert len(alerts) > 10
    assert set(re.findall(r'alertname="(\w+)"', RULES_TEST.read_text())) == alerts
