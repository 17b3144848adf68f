"""Writes one value as TOML has it."""

from __future__ import annotations

import json


def toml_value(value: str | float | bool) -> str:
    """Return a value as it stands behind `name = `.

    >>> toml_value("a"), toml_value(True), toml_value(0.5)
    ('"a"', 'true', '0.5')
    """
    # JSON's words for these types are TOML's, but for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
