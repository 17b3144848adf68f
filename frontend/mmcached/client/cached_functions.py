"""Keys of cached functions' calls: from a template over the arguments, or from the caller's own function.

>>> def embed(name: str, size: int = 224) -> None: ...
>>> key_function(embed, "embed/{name}@{size}")("cat")
'embed/cat@224'
"""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any

from mmcached.client.arguments import check_function, invalid, text_of
from mmcached.wire.errors import InvalidRequest

_SHOWN_WHOLE = (str, int, float, PurePath, type(None))
"""Types whose text contains the whole value; an array's text does not."""


def key_function(fn: Callable[..., Any], key: Any) -> Callable[..., str]:
    """Return a function that makes the key of a call of `fn` from the call's arguments.

    Args:
        key: A template whose fields are arguments of `fn`, or a function with the arguments of `fn`.

    Raises:
        InvalidRequest: `fn` is not callable; `key` is neither, or its fields are not arguments of `fn`.
    """
    check_function(fn)
    template = text_of(key)
    if template is None:
        if not callable(key):
            raise invalid("key", key, 'a template such as "embed/{name}", or a function that returns the key')
        made: Callable[..., str] = key
        return made
    signature = inspect.signature(fn)
    names = ", ".join(signature.parameters)
    limit = f"its fields, such as {{name}}, are arguments of the function: {names or 'it has none'}"
    try:
        fields = [field for _, field, _, _ in _FORMATTER.parse(template) if field is not None]
    except ValueError as error:
        raise invalid("key", template, f"{limit}; {error}") from None
    is_missing = any(_first_of(field) not in signature.parameters for field in fields)
    if is_missing or bool(fields) != bool(signature.parameters):
        raise invalid("key", template, limit)

    def key_of(*values: Any, **named: Any) -> str:
        bound = signature.bind(*values, **named)
        bound.apply_defaults()
        return _FORMATTER.vformat(template, (), bound.arguments)

    return key_of


def _first_of(field: str) -> str:
    return field.split(".", maxsplit=1)[0].split("[", maxsplit=1)[0]


class _Formatter(string.Formatter):
    """Formats only values whose text contains the whole value."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Any) -> Any:
        value, first = super().get_field(field_name, args, kwargs)
        if not isinstance(value, _SHOWN_WHOLE):
            limit = f"text, a number, a path or None in {{{field_name}}}; for others give a function as `key`"
            raise InvalidRequest("key", type(value).__name__, limit)
        return value, first


_FORMATTER = _Formatter()
