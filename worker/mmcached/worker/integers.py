"""Takes numbers that callers hand in as integers; what is none is refused, never truncated."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import SupportsIndex

from mmcached.wire.errors import ConfigError, InvalidRequest


def as_integer(field: str, value: SupportsIndex, refusal: type[InvalidRequest] = InvalidRequest) -> int:
    """Return an integer of any type as an `int`.

    Raises:
        InvalidRequest: names `field` and the value; a float is no integer, whatever its value.
    """
    if type(value) is int:
        return value
    try:
        return operator.index(value)
    except TypeError:
        raise refusal(field, repr(value)[:80], "must be an integer") from None


def check_integers(field: str, *numbers: Sequence[int]) -> None:
    """Return if all of these are integers, of any type.

    Raises:
        InvalidRequest: names `field` and what is none.
    """
    try:
        for some in numbers:
            operator.index(sum(some))  # a sum with a float in it is one
    except TypeError:
        for number in (number for some in numbers for number in some):
            as_integer(field, number)
        raise


def check_size(field: str, value: int, *, low: int, unit: str) -> None:
    """Return if a setting is an integer and not too small.

    Raises:
        ConfigError: names `field`, the value and the limit.
    """
    if as_integer(field, value, ConfigError) < low:
        raise ConfigError(field, value, f"at least {low} {unit}")
