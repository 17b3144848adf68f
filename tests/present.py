"""What must be there."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def present(found: T | None) -> T:
    """Return what was found; fail if nothing was."""
    assert found is not None
    return found
