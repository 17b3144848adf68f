"""KV slots: which a step may name, and who has written each of them last.

Knows nothing of rows. A slot has one tenant at a time: a step that writes a slot's KV replaces whatever was kept
for it.

    written_in   (num_slots,) number of the step that wrote the slot last
"""

from __future__ import annotations

import numpy as np
import torch

from mmcached.wire.errors import InvalidRequest


class SlotBook:
    """Checks slot mappings and remembers their last writers."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._written_in = np.zeros(num_slots, dtype=np.int64)
        self._scratch = np.empty(num_slots, dtype=np.int64)
        self._step = 1

    def check(self, slot_mapping: torch.Tensor, num_rows: int) -> np.ndarray:
        """Return the first `num_rows` slots as int64, after checking that each exists and none occurs twice.

        Raises:
            InvalidRequest: names the slot, or what the mapping is, and the limit.
        """
        if (
            slot_mapping.ndim != 1
            or slot_mapping.dtype not in (torch.int64, torch.int32)
            or slot_mapping.device.type != "cpu"
        ):
            found = f"{slot_mapping.dtype} {tuple(slot_mapping.shape)} on {slot_mapping.device}"
            raise InvalidRequest("slot_mapping", found, "must be 1-D int64 or int32 on the CPU")
        if not 0 <= num_rows <= len(slot_mapping):
            raise InvalidRequest("slot_mapping", len(slot_mapping), f"must name a slot for each of {num_rows} tokens")
        slots: np.ndarray = slot_mapping[:num_rows].numpy().astype(np.int64)  # a copy: the engine reuses its buffer
        if num_rows and (slots.min() < 0 or slots.max() >= self.num_slots):
            wrong = slots[(slots < 0) | (slots >= self.num_slots)]
            raise InvalidRequest("slot_mapping", int(wrong[0]), f"must lie in 0 … {self.num_slots - 1}")
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

    def take_over(self, slots: np.ndarray) -> np.ndarray:
        """Note that the step has written `slots`; return those that it had not written before."""
        former: np.ndarray = slots[self._written_in[slots] < self._step]
        self._written_in[slots] = self._step
        return former
