"""The alerts, judged by promtool: they are well formed, fire when they should, and then only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.deploy.metric_uses import RULES, RULES_TEST, expressions_of_dashboard
from tests.deploy.programs import program, run
from tests.house import REPOSITORY
from tests.house.test_dependencies import PROJECT


def test_each_alert_fires_and_does_not() -> None:
    assert "SUCCESS" in run("promtool", "check", "rules", "--lint-fatal", RULES)
    run("promtool", "test", "rules", RULES_TEST)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (" and on (job, instance) mmcached_draining == 0", ""),
        ("[15m]) > 3", "[15m]) > 1"),
        ("seconds > 75", "seconds > 30"),
        ("< 0.1 *", "< 0.3 *"),
        ("< 0.5 * mmcached", "< 0.9 * mmcached"),
        ("for: 15m", "for: 5m"),
        ("circuit_open[1m]) > 0.5", "circuit_open[5m]) > 0.5"),
        ('outcome=~"dropped|failed"', 'outcome=~"dropped"'),
    ],
)
def test_a_threshold_that_is_wrong_is_found(tmp_path: Path, right: str, wrong: str) -> None:
    program("promtool")
    text = RULES.read_text()
    assert text.count(right) == 1
    (tmp_path / RULES.name).write_text(text.replace(right, wrong))
    (tmp_path / RULES_TEST.name).write_text(RULES_TEST.read_text())
    with pytest.raises(AssertionError, match="FAILED"):
        run("promtool", "test", "rules", tmp_path / RULES_TEST.name)


def test_each_alert_links_to_its_heading_on_the_page() -> None:
    """As the site has it: the page as HTML, and the heading in small letters."""
    text = RULES.read_text()
    site = PROJECT["urls"]["Documentation"]
    headings = re.findall(r"^### (\w+)$", (REPOSITORY / "docs/deploy/monitoring.md").read_text(), re.MULTILINE)
    alerts = re.split(r"- alert: ", text)[1:]
    assert [alert.split()[0] for alert in alerts] == headings
    for alert, heading in zip(alerts, headings, strict=True):
        assert re.findall(r"runbook_url: (\S+)", alert) == [f"{site}deploy/monitoring.html#{heading.lower()}"]


def test_every_query_of_the_dashboard_can_be_read(tmp_path: Path) -> None:
    """As rules, with what Grafana puts in for its variables."""
    queries = [each for each in expressions_of_dashboard() if not each.startswith("label_values")]
    filled = [re.sub(r"\$(job|instance)", ".+", each).replace("$__rate_interval", "1m") for each in queries]
    rules = "".join(f"  - record: query:{number}\n    expr: >-\n      {each}\n" for number, each in enumerate(filled))
    (tmp_path / "queries.yml").write_text(f"groups:\n- name: dashboard\n  rules:\n{rules}")
    assert f"{len(queries)} rules found" in run("promtool", "check", "rules", tmp_path / "queries.yml")


def test_the_scrape_configuration_is_one() -> None:
    assert "SUCCESS" in run("promtool", "check", "config", RULES.with_name("prometheus.yml"))
