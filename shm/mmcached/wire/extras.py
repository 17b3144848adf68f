"""Versions of installed packages, and the command that installs missing ones."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version


def how_to_install(*extras: str) -> str:
    """Return the command that installs extras.

    >>> how_to_install("video", "audio")
    "pip install '.[video,audio]' in a checkout of mmcached"
    """
    return f"pip install '.[{','.join(extras)}]' in a checkout of mmcached"


def package_versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Return the version of each package; None if it is not installed."""
    return {package: _version(package) for package in packages}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
