"""Rows of one tensor by KV slot, with a number for each that says for which tenant of the slot it was written.

Knows nothing of requests or of what the rows mean. Lies in host memory.

    rows          (num_blocks, block_size, width)       slot = block_id * block_size + offset
    written_for   (num_blocks * block_size,)            0: for nobody; what is not for the present tenant is missing

Rows move as machine words through numpy: it copies a row at a time, where torch's `index_copy_` walks over its
elements (64 rows of 4 KiB: 4 against 37 microseconds).

Invariant: a read returns only rows that were written for the slot's present tenant, and not forgotten since. Memory is
not touched before it is written.
"""

from __future__ import annotations

import numpy as np
import torch

from mmcached.wire.errors import ConfigError, InvalidRequest, InvariantError
from mmcached.worker.omni.slots import SlotBook

_WORDS = (np.int64, np.int32, np.int16, np.int8)
Run = tuple[int, int]
"""Positions `[first, end)`."""


class RowStore:
    """Slot-addressed rows of one key.

    Args:
        key: for error messages.
        slots: who the slots' tenants are.

    Raises:
        ConfigError: so much memory cannot even be mapped.
    """

    def __init__(
        self, key: str, slots: SlotBook, *, num_blocks: int, block_size: int, width: int, dtype: torch.dtype
    ) -> None:
        self.key = key
        self.width = width
        self.dtype = dtype
        self.row_nbytes = width * dtype.itemsize
        # Not zeroed: a row is never read before it was written, and untouched pages cost no memory.
        try:
            self.rows = torch.empty((num_blocks, block_size, width), dtype=dtype)
        except (RuntimeError, MemoryError) as error:
            nbytes = num_blocks * block_size * self.row_nbytes
            raise ConfigError(f"{key}: bytes to map", nbytes, f"{num_blocks} blocks of {block_size} rows") from error
        self._word = next(word for word in _WORDS if self.row_nbytes % np.dtype(word).itemsize == 0)
        self._words = self._as_words(self.rows.view(-1, width))
        self._tenants = slots.tenants
        self._written_for = np.zeros(slots.num_slots, dtype=np.int64)

    @property
    def written_bytes(self) -> int:
        return int(np.count_nonzero(self._written_for == self._tenants)) * self.row_nbytes

    def check_rows(self, rows: object, field: str) -> torch.Tensor:
        """Return `rows` if they are rows of this key: `(n, width)` of its dtype. Never broadcasts, never converts.

        Raises:
            InvalidRequest: names `field`, what it is and what it must be.
        """
        if not isinstance(rows, torch.Tensor):
            raise InvalidRequest(field, type(rows).__name__, "must be a tensor, as before")
        if rows.dtype != self.dtype:
            raise InvalidRequest(f"{field}.dtype", str(rows.dtype), f"must be {self.dtype}")
        if rows.ndim != 2 or rows.shape[1] != self.width:
            raise InvalidRequest(f"{field}.shape", str(tuple(rows.shape)), f"must be (tokens, {self.width})")
        return rows

    def write(self, slots: np.ndarray, rows: torch.Tensor) -> None:
        """Write `rows[i]`, on the CPU, to `slots[i]`; both have passed their checks, no slot occurs twice."""
        self._words[slots] = self._as_words(rows.contiguous())
        self._written_for[slots] = self._tenants[slots]

    def has_any(self, slots: np.ndarray) -> bool:
        """Say whether any of `slots` was written."""
        return bool(self._are_written(slots).any())

    def first_missing(self, slots: np.ndarray) -> Run | None:
        """Return the first run of indexes of `slots` that were not written; None if there is none."""
        written = self._are_written(slots)
        if written.all():
            return None
        first = int(written.argmin())
        return first, first + (int(written[first:].argmax()) or len(slots) - first)

    def read_into(self, slots: np.ndarray, out: torch.Tensor) -> None:
        """Copy the rows of `slots`, all written, to `out`: `(len(slots), width)`, contiguous on the CPU."""
        np.take(self._words, slots, axis=0, out=self._as_words(out), mode="clip")

    def forget(self, slots: np.ndarray) -> None:
        """Say that `slots` hold nothing."""
        self._written_for[slots] = 0

    def clear(self) -> None:
        self._written_for[:] = 0

    def check_integrity(self) -> None:
        ahead = np.flatnonzero(self._written_for > self._tenants)
        if len(ahead):
            raise InvariantError(f"{self.key!r}: the row of slot {ahead[0]} was written for a tenant to come")

    def _are_written(self, slots: np.ndarray) -> np.ndarray:
        written: np.ndarray = self._written_for[slots] == self._tenants[slots]
        return written

    def _as_words(self, rows: torch.Tensor) -> np.ndarray:
        flat = torch.view_as_real(rows).view(len(rows), -1) if rows.is_complex() else rows
        words: np.ndarray = flat.view(torch.uint8).numpy().view(self._word)
        return words


def check_dtype(field: str, dtype: torch.dtype) -> None:
    """Raise `InvalidRequest` if it is none."""
    if not isinstance(dtype, torch.dtype):
        raise InvalidRequest(f"{field}.dtype", repr(dtype), "must be a torch.dtype")
