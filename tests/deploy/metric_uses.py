"""Finds the metrics that the dashboard and the alerts name, with the labels and values by which they choose."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import NamedTuple

from tests.house import REPOSITORY

DASHBOARD = REPOSITORY / "deploy" / "grafana" / "mmcached.json"
RULES = REPOSITORY / "deploy" / "prometheus" / "rules.yml"
RULES_TEST = RULES.with_name("rules_test.yml")
OF_THE_SCRAPE = {"job", "instance", "le"}
"""Labels that Prometheus gives, and the one of a histogram's buckets."""


class Use(NamedTuple):
    """A metric, and what it is chosen by: (label, operator, value)."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]


def expressions_of_dashboard() -> list[str]:
    """Return the queries of all panels, and those that fill the variables."""
    board = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    variables = [each["definition"] for each in board["templating"]["list"] if "definition" in each]
    return queries + variables


def uses(texts: Iterable[str]) -> set[Use]:
    """Return every metric of ours in these texts."""
    found = set()
    for text in texts:
        for metric, selector in re.findall(r"(?<![\w:])(mmcached_\w+)(?:\{([^}]*)\})?", text):
            matchers = re.findall(r'(\w+)(=~|!~|!=|=)"([^"]*)"', selector)
            found.add(Use(metric, tuple(each for each in matchers if each[0] not in OF_THE_SCRAPE)))
    return found


def all_uses() -> set[Use]:
    """Return every metric that is used under deploy/, the made-up series of the rules' test among them."""
    return uses([*expressions_of_dashboard(), RULES.read_text(), RULES_TEST.read_text()])


def unknown(page: str, wanted: set[Use] | None = None) -> list[Use]:
    """Return the uses that no sample of a metrics page answers: no such name, no such label, or no such value.

    Args:
        wanted: by default `all_uses`.
    """
    samples = [
        (metric, dict(re.findall(r'(\w+)="([^"]*)"', labels)))
        for metric, labels in re.findall(r"^(mmcached_\w+)(?:\{(.*)\})? ", page, re.MULTILINE)
    ]
    uses = all_uses() if wanted is None else wanted
    return sorted(use for use in uses if not any(_answers(use, name, labels) for name, labels in samples))


def _answers(use: Use, name: str, labels: dict[str, str]) -> bool:
    if name != use.metric:
        return False
    for label, operator, value in use.matchers:
        is_equal = re.fullmatch(value if "~" in operator else re.escape(value), labels.get(label, "")) is not None
        if label not in labels or is_equal == operator.startswith("!"):
            return False
    return True
