"""Escapes text from outside before it is printed: keys, paths and error messages may contain terminal commands.

`shown` is for a name within a line, `shown_lines` for text of several lines. Printable characters are left as they are.
"""

from __future__ import annotations


def shown(text: str) -> str:
    r"""Return the text with unprintable characters escaped, including line ends.

    >>> shown("a\x1b[2J"), shown("Katze"), shown("\u202etxt")
    ('a\\x1b[2J', 'Katze', '\\u202etxt')
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def shown_lines(text: str) -> str:
    """Return the text with unprintable characters escaped, except line ends."""
    return "\n".join(map(shown, text.split("\n")))


def json_shown(text: str) -> str:
    r"""Return JSON with unprintable characters escaped, except line ends; all others are within strings.

    >>> json_shown('{\n"\u009b": "\U000e0001"}')
    '{\n"\\u009b": "\\udb40\\udc01"}'
    """
    if text.replace("\n", "").isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign == "\n" else _json_escape(sign) for sign in text)


def _json_escape(sign: str) -> str:
    units = sign.encode("utf-16-be")
    return "".join(f"\\u{units[place : place + 2].hex()}" for place in range(0, len(units), 2))
