"""Tells which version of mmcached is installed."""

from __future__ import annotations

from importlib import metadata

NOT_INSTALLED = "not installed"
"""What runs from a path, as a checkout does, has no version."""


def installed_version() -> str:
    """Return the version, or `NOT_INSTALLED`."""
    try:
        return metadata.version("mmcached")
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED
