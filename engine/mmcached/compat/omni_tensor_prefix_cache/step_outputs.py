"""Remembers which outputs of a step were written to which slots, so that each leaves its device only once.

An engine refills its tensors at every step, and torch does not see each of these writes: an entry is valid for one
step, and for one use.
"""

from __future__ import annotations

import numpy as np
import torch


class StepOutputs:
    """Outputs that the current step has written, by name."""

    def __init__(self) -> None:
        self._slots: np.ndarray | None = None
        self._written: dict[str, tuple[torch.Tensor, int, np.ndarray]] = {}

    def begin(self, slots: np.ndarray) -> None:
        """Forget the previous step; the new one writes these slots."""
        self._written.clear()
        self._slots = slots

    def clear(self) -> None:
        self._written.clear()
        self._slots = None

    def take_slots(self) -> np.ndarray | None:
        """Return the slots of the step's packed rows, once; None if they are unknown."""
        slots, self._slots = self._slots, None
        return slots

    def add(self, name: str, rows: torch.Tensor, slots: np.ndarray) -> None:
        """Remember that `rows[i]` has been written to `slots[i]`."""
        self._written[name] = rows, _version(rows), slots

    def take_written(self, name: str, rows: torch.Tensor, num_rows: int) -> np.ndarray | None:
        """Return, once, the slots that hold the first `num_rows` of `rows`; None if these were not written."""
        found = self._written.pop(name, None)
        if found is None:
            return None
        written, version, slots = found
        return slots[:num_rows] if num_rows <= len(slots) and _is_same(rows, written, version) else None


def _is_same(rows: torch.Tensor, earlier: torch.Tensor, version: int) -> bool:
    """Return whether both tensors begin at the same address, with the same row layout and no write in between."""
    return (
        rows.data_ptr() == earlier.data_ptr()
        and rows.dtype == earlier.dtype
        and rows.shape[1:] == earlier.shape[1:]
        and rows.stride() == earlier.stride()
        and _version(rows) == version
    )


def _version(rows: torch.Tensor) -> int:
    return 0 if rows.is_inference() else rows._version  # inference tensors do not count their writes
