"""KV slots: which a step may name, and whose they are.

Knows nothing of rows. A slot has one tenant at a time: a step that writes a slot's KV replaces whatever was kept
for it. So a row counts only as long as the slot has the tenant that the row was written for, and to give a slot a new
tenant forgets its rows of all keys at once.

    tenants   (num_slots,) of each slot the number of the step that wrote it last, at least 1
"""

from __future__ import annotations

import numpy as np
import torch

from mmcached.wire.errors import InvalidRequest


class SlotBook:
    """Checks slot mappings and remembers tenants.

    Attributes:
        tenants: see above; only this class changes it.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.tenants = np.ones(num_slots, dtype=np.int64)
        self._scratch = np.empty(num_slots, dtype=np.int64)
        self._step = 1

    def check(self, slot_mapping: torch.Tensor, num_rows: int | None = None) -> np.ndarray:
        """Return the first `num_rows` slots, or all, as int64: after checking that each exists and none occurs twice.

        Raises:
            InvalidRequest: names the slot, or what the mapping is, and the limit.
        """
        if (
            not isinstance(slot_mapping, torch.Tensor)
            or slot_mapping.ndim != 1
            or slot_mapping.dtype not in (torch.int64, torch.int32)
            or not slot_mapping.is_cpu
        ):
            raise InvalidRequest("slot_mapping", _looks(slot_mapping), "must be a 1-D int64 or int32 tensor on the CPU")
        if num_rows is None:
            num_rows = slot_mapping.shape[0]
        elif not 0 <= num_rows <= slot_mapping.shape[0]:
            limit = f"must name a slot for each of {num_rows} tokens"
            raise InvalidRequest("slot_mapping", slot_mapping.shape[0], limit)
        slots: np.ndarray = slot_mapping.numpy()[:num_rows].astype(np.int64)  # a copy: the engine reuses its buffer
        # Taken as unsigned numbers, negative ones are the largest.
        if num_rows and slots.view(np.uint64).max() >= self.num_slots:
            wrong = slots[(slots < 0) | (slots >= self.num_slots)]
            raise InvalidRequest("slot_mapping", int(wrong[0]), f"must lie in 0 … {self.num_slots - 1}")
        if num_rows > 1:
            # Of rows with one slot only the last leaves its number there.
            numbers = np.arange(num_rows)
            self._scratch[slots] = numbers
            is_last = self._scratch[slots] == numbers
            if not is_last.all():
                twice = int(slots[int(is_last.argmin())])
                raise InvalidRequest("slot_mapping", twice, "must name each slot once")
        return slots

    def begin_step(self) -> None:
        self._step += 1

    def take_over(self, slots: np.ndarray) -> None:
        """Give `slots` to the step at hand. What it has written there before stays."""
        self.tenants[slots] = self._step


def _looks(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{value.dtype} {tuple(value.shape)} on {value.device}"
