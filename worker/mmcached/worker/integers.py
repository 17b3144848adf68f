"""Numbers that callers hand in, as integers: what is none is refused and never truncated."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from mmcached.wire.errors import InvalidRequest


def as_integer(field: str, value: SupportsIndex) -> int:
    """Return an integer of any type as an `int`.

    Raises:
        InvalidRequest: names `field` and the value; a float is no integer, whatever its value.
    """
    if type(value) is int:
        return value
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidRequest(field, repr(value)[:80], "must be an integer") from None
