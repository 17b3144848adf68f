"""Reports mmcached's installed version, and missing packages."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from typing import Literal

from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError
from mmcached.wire.extras import how_to_install

_SPAN_EXPORTER = "opentelemetry-exporter-otlp-proto-http"
NOT_INSTALLED = "not installed"
"""The version of code that runs from a path, as a checkout does."""


def installed_version() -> str:
    try:
        return metadata.version("mmcached")
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED


def check_packages(config: ServiceConfig, extra: Literal["service", "demo"] = "service") -> None:
    """Raise ConfigError if a package that workers import, or that spans need, is not installed."""
    if config.otlp_traces_endpoint:
        try:
            metadata.version(_SPAN_EXPORTER)
        except metadata.PackageNotFoundError:
            limit = f"needs {_SPAN_EXPORTER}, not installed: {how_to_install('otel')}"
            raise ConfigError("otlp_traces_endpoint", config.otlp_traces_endpoint, limit) from None
    missing = [name for name in ("torch", "PIL") if find_spec(name) is None]
    if config.has_workers and missing:
        fix = how_to_install(extra) + (", or --workers 0 for only a store" if extra == "service" else "")
        raise ConfigError(
            "world_size", config.world_size, f"workers need {' and '.join(missing)}, not installed: {fix}"
        )
