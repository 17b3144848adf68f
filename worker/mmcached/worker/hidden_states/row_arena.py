"""Rows of one key in host memory, with a flag for each written row.

    rows      block 0: row 0 … block_size - 1 | block 1: … | …        index of a row = block_id * block_size + offset
    written   (num_blocks, block_size) bool

One anonymous mapping holds all rows, so memory grows as they are written. Rows move through numpy as the widest machine
words that divide a row: numpy copies a row at a time, while torch's `index_copy_` iterates over elements (64 rows of 4
KiB: 4 against 37 microseconds). A row may be marked as written before its bytes arrive: `pending_rows`.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import torch

from mmcached.wire.errors import ConfigError
from mmcached.worker.hidden_states.schema import KeySpec

_WORDS = (np.int64, np.int32, np.int16, np.int8)
# Without a reservation, so that rows that are never written do not count as committed memory.
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)


class RowArena:
    """Rows of one key; `written` is `(num_blocks, block_size)` bool. Raises `ConfigError` if the mapping fails."""

    def __init__(self, spec: KeySpec, *, block_size: int, num_blocks: int) -> None:
        self.spec = spec
        self.block_nbytes = block_size * spec.row_nbytes
        self.num_rows = num_blocks * block_size
        self._block_size = block_size
        self._word = next(word for word in _WORDS if spec.row_nbytes % np.dtype(word).itemsize == 0)
        nbytes = num_blocks * self.block_nbytes
        try:
            self._memory = mmap.mmap(-1, max(nbytes, 1), flags=_FLAGS)
            self.written = np.zeros((num_blocks, block_size), dtype=np.bool_)
        except (OSError, OverflowError, MemoryError) as error:
            raise ConfigError(f"{spec.name}: bytes to map", nbytes, str(error)) from error
        self._bytes = np.frombuffer(self._memory, dtype=np.uint8)[:nbytes]
        words = self._bytes.view(self._word)
        self._rows = words.reshape(self.num_rows, spec.row_nbytes // words.itemsize)
        self._is_written = self.written.reshape(-1)

    @property
    def tensor(self) -> torch.Tensor:
        """View of all rows, `(num_blocks, block_size, *shape)`; rows that were not written are undefined."""
        shape = (*self.written.shape, *self.spec.shape)
        return torch.from_numpy(self._bytes).view(self.spec.dtype).view(shape)

    # ---- rows

    def put(self, indexes: np.ndarray, rows: torch.Tensor, places: np.ndarray | None = None) -> None:
        """Write rows and mark them.

        Args:
            indexes: `(n,)` int64, where the rows go; an index that occurs twice must have the same row.
            rows: `(n, *shape)`, or as many as `places` needs; rows on a device are copied synchronously.
            places: `(n,)`, the numbers of the rows to be written; None: all rows.
        """
        words = self._as_words(rows)
        if places is not None:
            first, num = int(places[0]), len(places)
            is_run = places[-1] - first == num - 1 and (places[1:] > places[:-1]).all()
            words = words[first : first + num] if is_run else words[places]
        self._rows[indexes] = words
        self._is_written[indexes] = True

    def mark(self, indexes: np.ndarray) -> None:
        """Mark rows as written whose bytes will be put later."""
        self._is_written[indexes] = True

    def copy_rows(self, indexes: np.ndarray, out: torch.Tensor) -> None:
        """Copy rows to `out`, `(n, *shape)`, contiguous on the CPU; undefined for negative indexes."""
        np.take(self._rows, indexes, axis=0, out=self._as_words(out), mode="clip")

    def are_written(self, indexes: np.ndarray) -> np.ndarray:
        """Return `(n,)` bool, False for negative indexes."""
        if not len(self._is_written):
            return np.zeros(len(indexes), dtype=np.bool_)
        written: np.ndarray = self._is_written[indexes] & (indexes >= 0)
        return written

    def num_leading(self, block_ids: np.ndarray) -> np.ndarray:
        """Return the number of written rows of each block before its first gap."""
        written = self.written[block_ids]
        num: np.ndarray = np.where(written.all(axis=1), self._block_size, written.argmin(axis=1))
        return num

    def copy_lacking(self, source: int, target: int) -> tuple[np.ndarray, np.ndarray]:
        """Copy to block `target` the rows that only block `source` has; return the row indices in both."""
        offsets = np.flatnonzero(self.written[source] & ~self.written[target])
        sources, targets = source * self._block_size + offsets, target * self._block_size + offsets
        self._rows[targets] = self._rows[sources]
        self._is_written[targets] = True
        return sources, targets

    # ---- forgetting

    def forget(self, indexes: np.ndarray) -> None:
        self._is_written[indexes] = False

    def clear(self) -> None:
        """Forget all rows, and return all memory to the system."""
        self.written[:] = False
        self._memory.madvise(mmap.MADV_DONTNEED)

    def give_back(self, block_ids: Iterable[int]) -> None:
        """Return the memory of unused blocks to the system, as far as whole pages go."""
        ordered = sorted(block_ids)
        breaks = [index for index, (a, b) in enumerate(pairwise(ordered), 1) if b != a + 1]
        for first, end in pairwise([0, *breaks, len(ordered)]):
            if first < end:
                self._give_back_run(ordered[first] * self.block_nbytes, (ordered[end - 1] + 1) * self.block_nbytes)

    def _give_back_run(self, begin: int, end: int) -> None:
        first, last = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last:
            self._memory.madvise(mmap.MADV_DONTNEED, first, last - first)

    def _as_words(self, rows: torch.Tensor) -> np.ndarray:
        # Each conversion costs as much as copying a row, so unneeded ones are skipped.
        if not rows.is_cpu:
            rows = rows.cpu()
        if rows.requires_grad:
            rows = rows.detach()
        if rows.is_complex():
            rows = torch.view_as_real(rows)
        rows = rows.contiguous()
        if rows.ndim != 2:
            rows = rows.view(rows.shape[0], -1)
        words: np.ndarray = rows.view(torch.uint8).numpy().view(self._word)
        return words


def first_missing(written: np.ndarray) -> tuple[int, int] | None:
    """Return the first run `[first, end)` of rows that were not written, or None."""
    if written.all():
        return None
    first = int(written.argmin())
    return first, first + (int(written[first:].argmax()) or len(written) - first)
