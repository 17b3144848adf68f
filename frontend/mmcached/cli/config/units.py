"""Parses sizes and durations with a unit: `2GiB`, `500ms`. The suffix of a field's name gives the field's own unit.

    ..._gb       GiB        ..._bytes    bytes
    ..._mb       MiB        ..._s        seconds
    ..._kb       KiB

Sizes: B; KiB, MiB, GiB, TiB are powers of 1024; KB, MB, GB, TB are powers of 1000; case does not matter. Nothing is
rounded: a fraction in the field's unit stays one, and an integer field refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from mmcached.wire.errors import ConfigError

_SIZES: Mapping[str, Fraction] = {
    "b": Fraction(1),
    **{f"{prefix}b": Fraction(1000 ** (power + 1)) for power, prefix in enumerate("kmgt")},
    **{f"{prefix}ib": Fraction(1024 ** (power + 1)) for power, prefix in enumerate("kmgt")},
}
_DURATIONS: Mapping[str, Fraction] = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
}
# Bounded, because parsing a number of a million digits takes minutes.
_QUANTITY = re.compile(r"([+-]?\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]+)")


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a field.

    Attributes:
        name: Display name.
        size: Size of the unit, in the unit of `units` whose value is 1.
        units: Accepted units of a value, by lower-case name.
        example: Example values with a unit.
    """

    name: str
    size: Fraction
    units: Mapping[str, Fraction]
    example: str


_SIZE_EXAMPLE = "512MiB or 2GiB (KiB, MiB, GiB, TiB are powers of 1024; KB, MB, GB, TB of 1000)"
_DURATION_EXAMPLE = "500ms, 30s, 2m or 1h"
_SUFFIXES = {
    "gb": Unit("GiB", Fraction(1 << 30), _SIZES, _SIZE_EXAMPLE),
    "mb": Unit("MiB", Fraction(1 << 20), _SIZES, _SIZE_EXAMPLE),
    "kb": Unit("KiB", Fraction(1 << 10), _SIZES, _SIZE_EXAMPLE),
    "bytes": Unit("bytes", Fraction(1), _SIZES, _SIZE_EXAMPLE),
    "s": Unit("seconds", Fraction(1), _DURATIONS, _DURATION_EXAMPLE),
}


def unit_of(field: str) -> Unit | None:
    """Return the unit of a field, or None if its name has no unit."""
    return _SUFFIXES.get(field.rpartition("_")[2]) if "_" in field else None


def in_unit_of(field: str, value: object) -> object:
    """Convert text like `2GiB` to a number in the field's unit (an int if it is whole); return other values unchanged.

    Raises:
        ConfigError: The field does not accept the unit.
    """
    unit = unit_of(field)
    quantity = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if unit is None or quantity is None:
        return value
    number, given = quantity.groups()
    # Durations are case-sensitive: "M" could mean month or mega; sizes have no such ambiguity.
    factor = unit.units.get(given if unit.units is _DURATIONS else given.lower())
    if factor is None:
        raise ConfigError(field, str(value), f"unknown unit {given}; give {unit.name}, or {unit.example}")
    amount = Fraction(number) * factor / unit.size
    return int(amount) if amount.denominator == 1 else float(amount)
