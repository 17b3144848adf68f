"""Computes a fingerprint of everything besides the item that an output depends on.

>>> fingerprint({"model": "a", "dtype": "float32"}) == fingerprint({"dtype": "float32", "model": "a"})
True
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from blake3 import blake3


def fingerprint(parts: Mapping[str, Any]) -> str:
    """Return the fingerprint (32 hex digits) of these values.

    Args:
        parts: JSON values, in any order.

    Raises:
        TypeError, ValueError: A value is not a JSON value.
    """
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return blake3(text.encode()).hexdigest(16)
