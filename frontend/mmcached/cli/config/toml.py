"""Formats one value as TOML."""

from __future__ import annotations

import json


def toml_value(value: str | float | bool) -> str:
    """Return a value as it stands behind `name = `.

    >>> toml_value("a"), toml_value(True), toml_value(0.5)
    ('"a"', 'true', '0.5')
    """
    # JSON's forms of these types are TOML's, except for characters beyond U+FFFF: TOML has no surrogates.
    text = json.dumps(value, ensure_ascii=False)
    return "".join(sign if sign.isprintable() else _escape(sign) for sign in text)


def _escape(sign: str) -> str:
    return f"\\u{ord(sign):04x}" if ord(sign) <= 0xFFFF else f"\\U{ord(sign):08x}"
