"""A step's outputs on the CPU: each is copied from its device once, however often the step needs it.

What is on the CPU already is not copied. A copy is kept, with the tensor that it was made of, until its second use or
until the next step begins, whichever is first: an engine fills its buffers anew for every step.

Knows nothing of what the rows mean.
"""

from __future__ import annotations

import torch


class HostCopies:
    """Copies by name of the output."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[torch.Tensor, int, torch.Tensor]] = {}

    def make(self, name: str, rows: torch.Tensor, num_rows: int) -> torch.Tensor:
        """Return the first `num_rows` rows on the CPU; keep the copy for `take`."""
        if _is_on_host(rows):
            return _first(rows, num_rows)
        copied = _to_host(rows[:num_rows].detach())
        self._kept[name] = (rows, _version(rows), copied)
        return copied

    def take(self, name: str, rows: torch.Tensor, num_rows: int) -> torch.Tensor:
        """Return the first `num_rows` rows on the CPU: what `make` has kept of the same memory, or a copy."""
        if _is_on_host(rows):
            return _first(rows, num_rows)
        kept = self._kept.pop(name, None)
        if kept is not None and num_rows <= len(kept[2]) and _is_same(rows, *kept[:2]):
            return kept[2][:num_rows]
        return _to_host(rows[:num_rows].detach())

    def drop(self) -> None:
        self._kept.clear()


def _is_same(rows: torch.Tensor, earlier: torch.Tensor, version: int) -> bool:
    """Say whether both begin at one place, row for row, and torch knows of no write in between."""
    return (
        rows.data_ptr() == earlier.data_ptr()
        and rows.dtype == earlier.dtype
        and rows.shape[1:] == earlier.shape[1:]
        and rows.stride() == earlier.stride()
        and _version(rows) == version
    )


def _version(rows: torch.Tensor) -> int:
    return 0 if rows.is_inference() else rows._version  # inference tensors do not count their writes


def _first(rows: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Return the first rows: no new view where all of them are wanted, because each takes as long as to write a row."""
    if rows.shape[0] != num_rows:
        rows = rows[:num_rows]
    return rows.detach() if rows.requires_grad else rows


def _is_on_host(rows: torch.Tensor) -> bool:
    return rows.is_cpu


def _to_host(rows: torch.Tensor) -> torch.Tensor:
    return rows.to("cpu", copy=True)
