"""Makes a module that has every name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Quiet:
    """Has every method; none does anything."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *values, **named: None


def any_name(name: str) -> Any:
    """Return an empty class, as the `__getattr__` of a module."""
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
