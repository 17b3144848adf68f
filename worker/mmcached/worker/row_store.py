"""Rows of one tensor by KV slot, with a bit for each that says whether it was written.

Knows nothing of requests or of what the rows mean. Lies in host memory.

    rows     (num_blocks, block_size, width)       slot = block_id * block_size + offset
    written  (num_blocks * block_size,) bool

Invariant: a read returns only rows that were written since they were last forgotten; anything else is `MissingRows`.
Memory is not touched before it is written.
"""

from __future__ import annotations

import torch

from mmcached.wire.errors import InvalidRequest, InvariantError, MissingRows


def check_slots(slot_mapping: torch.Tensor, num_rows: int, num_slots: int) -> torch.Tensor:
    """Return the first `num_rows` slots as int64, after checking that each exists and none occurs twice.

    Raises:
        InvalidRequest: names the slot, or what the mapping is, and the limit.
    """
    if slot_mapping.ndim != 1 or slot_mapping.dtype not in (torch.int64, torch.int32) or slot_mapping.is_cuda:
        found = f"{slot_mapping.dtype} {tuple(slot_mapping.shape)} on {slot_mapping.device}"
        raise InvalidRequest("slot_mapping", found, "must be 1-D int64 or int32 on the CPU")
    if not 0 <= num_rows <= len(slot_mapping):
        raise InvalidRequest("slot_mapping", len(slot_mapping), f"must name a slot for each of {num_rows} tokens")
    slots = slot_mapping[:num_rows].to(torch.int64)
    wrong = slots[(slots < 0) | (slots >= num_slots)]
    if len(wrong):
        raise InvalidRequest("slot_mapping", int(wrong[0]), f"must lie in 0 … {num_slots - 1}")
    if len(torch.unique(slots)) != num_rows:
        raise InvalidRequest("slot_mapping", str(slots.tolist()), "must name each slot once")
    return slots


class RowStore:
    """Slot-addressed rows of one key.

    Args:
        key: for error messages.
    """

    def __init__(self, key: str, *, num_blocks: int, block_size: int, width: int, dtype: torch.dtype) -> None:
        self.key = key
        self.width = width
        # Not zeroed: a row is never read before it was written, and untouched pages cost no memory.
        self.rows = torch.empty((num_blocks, block_size, width), dtype=dtype)
        self._flat = self.rows.view(-1, width)
        self._written = torch.zeros(len(self._flat), dtype=torch.bool)
        self._num_written = 0

    @property
    def num_written(self) -> int:
        return self._num_written

    @property
    def written_bytes(self) -> int:
        return self._num_written * self.width * self.rows.element_size()

    def check_rows(self, rows: torch.Tensor, field: str) -> None:
        """Check that `rows` are rows of this key: `(n, width)` of its dtype. Never broadcasts, never converts.

        Raises:
            InvalidRequest: names `field`, what it is and what it must be.
        """
        if rows.dtype != self.rows.dtype:
            raise InvalidRequest(f"{field}.dtype", str(rows.dtype), f"must be {self.rows.dtype}")
        if rows.ndim != 2 or rows.shape[1] != self.width:
            raise InvalidRequest(f"{field}.shape", str(tuple(rows.shape)), f"must be (tokens, {self.width})")

    def write(self, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Write `rows[i]` to `slots[i]`; both have passed their checks, no slot occurs twice."""
        self._flat.index_copy_(0, slots, rows)
        self._num_written += len(slots) - int(self._written[slots].sum())
        self._written[slots] = True

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """Return the rows of `slots`, which are those of positions 0 …, as a fresh `(n, width)` tensor.

        Raises:
            MissingRows: at least one was not written; names the first run of such positions.
        """
        written = self._written[slots]
        if not bool(written.all()):
            first = int((~written).nonzero()[0])
            later = written[first:].nonzero()
            raise MissingRows(self.key, first, first + int(later[0]) if len(later) else len(slots))
        return self._flat.index_select(0, slots)

    def forget(self, slots: torch.Tensor) -> None:
        """Say that `slots` hold nothing."""
        self._num_written -= int(self._written[slots].sum())
        self._written[slots] = False

    def clear(self) -> None:
        self._written.zero_()
        self._num_written = 0

    def check_integrity(self) -> None:
        counted = int(self._written.sum())
        if counted != self._num_written:
            raise InvariantError(f"{self.key!r}: {counted} rows are written, {self._num_written} are counted")
