"""What a configuration needs and is not installed is named before anything starts."""

from __future__ import annotations

from importlib import metadata

import pytest

from mmcached.cli import installed
from mmcached.cli.installed import check_packages
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError


def test_spans_need_their_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ServiceConfig(otlp_traces_endpoint="http://127.0.0.1:4318/v1/traces", world_size=0)
    check_packages(config)

    def none_is_installed(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", none_is_installed)
    check_packages(ServiceConfig(world_size=0))
    with pytest.raises(ConfigError, match=r"otlp_traces_endpoint.*pip install '\.\[otel\]'"):
        check_packages(config)


def test_a_demo_names_all_that_it_needs_and_no_option_that_it_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"torch and PIL, not installed: pip install '\.\[demo\]'") as caught:
        check_packages(ServiceConfig(), "demo")
    assert "--workers 0" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"pip install '\.\[service\]'.*or --workers 0 for only a store"):
        check_packages(ServiceConfig())
