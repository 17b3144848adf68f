"""Escapes text from outside before it is printed: keys, paths and error messages may hold commands for a terminal.

`shown` is for a name within a line, `shown_lines` for text of several lines. What prints is left as it is.
"""

from __future__ import annotations


def shown(text: str) -> str:
    r"""Return the text with every character escaped that does not print, also line ends.

    >>> shown("a\x1b[2J"), shown("Katze"), shown("\u202etxt")
    ('a\\x1b[2J', 'Katze', '\\u202etxt')
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def shown_lines(text: str) -> str:
    """Do the same, but keep line ends."""
    return "\n".join(map(shown, text.split("\n")))


def json_shown(text: str) -> str:
    r"""Return JSON with every character escaped that does not print: all of them are within strings, but line ends.

    >>> json_shown('{\n"\u009b": "\U000e0001"}')
    '{\n"\\u009b": "\\udb40\\udc01"}'
    """
    if text.replace("\n", "").isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign == "\n" else _json_escape(sign) for sign in text)


def _json_escape(sign: str) -> str:
    units = sign.encode("utf-16-be")
    return "".join(f"\\u{units[place : place + 2].hex()}" for place in range(0, len(units), 2))
