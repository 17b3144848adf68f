"""Checks that numbers passed by callers are integers; raises `InvalidRequest` for others, never truncates."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import SupportsIndex

from mmcached.wire.errors import ConfigError, InvalidRequest


def as_integer(field: str, value: SupportsIndex, refusal: type[InvalidRequest] = InvalidRequest) -> int:
    """Return an integer of any type as an `int`; raises `refusal` for other values, such as floats."""
    if type(value) is int:
        return value
    try:
        return operator.index(value)
    except TypeError:
        raise refusal(field, repr(value)[:80], "must be an integer") from None


def check_integers(field: str, *numbers: Sequence[int]) -> None:
    """Raise `InvalidRequest`, with `field` and the value, unless all numbers are integers of any type."""
    try:
        for some in numbers:
            operator.index(sum(some))  # fast path: a sum that includes a float is a float
    except TypeError:
        for number in (number for some in numbers for number in some):
            as_integer(field, number)
        raise


def check_size(field: str, value: int, *, low: int, unit: str) -> None:
    """Raise `ConfigError`, with field, value and limit, unless a setting is an integer of at least `low`."""
    if as_integer(field, value, ConfigError) < low:
        raise ConfigError(field, value, f"at least {low} {unit}")
