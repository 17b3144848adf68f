"""The collector's configuration is consistent, and takes what the service sends and shows."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from mmcached.cli.config.arguments import parse_arguments
from tests.docs.pages import code, shell_lines
from tests.house import REPOSITORY

FILE = REPOSITORY / "deploy" / "otel" / "collector.yaml"
PAGE = REPOSITORY / "docs" / "tracing.md"


@pytest.fixture(scope="module")
def collector() -> Any:
    return yaml.safe_load(FILE.read_text())


def test_pipelines_are_made_of_what_is_configured(collector: Any) -> None:
    pipelines = collector["service"]["pipelines"]
    assert set(pipelines) == {"traces", "metrics"}
    for kind in ("receivers", "processors", "exporters"):
        used = {name for pipeline in pipelines.values() for name in pipeline[kind]}
        assert used == set(collector[kind]), kind


def test_it_listens_and_scrapes_where_the_page_sends_and_shows(collector: Any) -> None:
    assert "deploy/otel/collector.yaml" in PAGE.read_text()
    commands = [words for text in code(PAGE, "sh") for words in shell_lines(text)]
    *_, command = [words for words in commands if words[:2] == ["mmcached", "serve"]]
    settings = {name: text for name, (text, _) in parse_arguments(command[2:]).items()}
    (job,) = collector["receivers"]["prometheus"]["config"]["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"127.0.0.1:{settings['http_port']}"]}]
    address = collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    assert settings["otlp_traces_endpoint"] == f"http://{address}/v1/traces"
