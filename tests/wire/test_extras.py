"""Packages are named whether they are installed or not."""

from __future__ import annotations

from importlib.metadata import version

from mmcached.wire.extras import package_versions


def test_packages_are_named_whether_they_are_installed_or_not() -> None:
    assert package_versions(("numpy", "no-such-package")) == {"numpy": version("numpy"), "no-such-package": None}
