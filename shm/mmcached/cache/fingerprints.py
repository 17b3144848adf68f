"""Names all that an output depends on beside the item, in few digits; versions of packages are a part of it.

>>> fingerprint({"model": "a", "dtype": "float32"}) == fingerprint({"dtype": "float32", "model": "a"})
True
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from blake3 import blake3


def fingerprint(parts: Mapping[str, Any]) -> str:
    """Return the name (32 hex digits) of these values.

    Args:
        parts: JSON values, in any order.
    Raises:
        TypeError, ValueError: one of them is no JSON value.
    """
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return blake3(text.encode()).hexdigest(16)


def package_versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Return the version of each package; None for one that is not installed."""
    return {package: _version(package) for package in packages}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
