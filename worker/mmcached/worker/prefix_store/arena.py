"""The rows of one key: memory that is there when it is used, and a mark for each row that was written.

    rows      slot 0: row 0 … block_size - 1 | slot 1: … | …        index of a row = slot * block_size + offset
    written   (num_slots, block_size) bool

`written` tells which rows have been written, although the bytes of some may still be on their way: `staging` knows of
which, and lands them.

One anonymous mapping as large as the budget allows; the kernel gives it pages as rows are written, so memory grows with
use, and every gather and scatter is one call over one array. Rows move as the widest machine words that they consist
of, through numpy: it copies a row at a time, where torch's `index_copy_` walks over its elements (64 rows of 4 KiB: 4
against 37 microseconds; gathers: about equal).

Knows nothing of names or requests.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import torch

from mmcached.wire.errors import ConfigError, InvariantError
from mmcached.worker.prefix_store.schema import KeySpec

_WORDS = (np.int64, np.int32, np.int16, np.int8)
# Rows that are never written shall not count as promised memory either, where the kernel keeps such an account.
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)


class RowArena:
    """Rows of a "per_token" key, by slot.

    Attributes:
        name, shape, dtype, row_nbytes: of the key and of one row.
        num_rows: that there is room for.
        written: `(num_slots, block_size)` bool; only this class changes it.

    Raises:
        ConfigError: so much cannot even be mapped.
    """

    def __init__(self, spec: KeySpec, *, block_size: int, num_slots: int) -> None:
        if spec.shape is None or spec.dtype is None:
            raise InvariantError(f"{spec.name!r} is {spec.kind}: it has no rows")
        self.name, self.shape, self.dtype, self.row_nbytes = spec.name, spec.shape, spec.dtype, spec.nbytes
        self.block_nbytes = block_size * spec.nbytes
        self.num_rows = num_slots * block_size
        self._block_size = block_size
        self._word = next(word for word in _WORDS if spec.nbytes % np.dtype(word).itemsize == 0)
        nbytes = num_slots * self.block_nbytes
        try:
            self._memory = mmap.mmap(-1, max(nbytes, 1), flags=_FLAGS)
            self.written = np.zeros((num_slots, block_size), dtype=np.bool_)
        except (OSError, OverflowError, MemoryError) as error:
            raise ConfigError(f"{spec.name}: bytes to map", nbytes, str(error)) from error
        words = np.frombuffer(self._memory, dtype=np.uint8)[:nbytes].view(self._word)
        row_words = spec.nbytes // words.itemsize
        self._rows = words.reshape(num_slots * block_size, row_words)
        self._blocks = words.reshape(num_slots, block_size * row_words)
        self._is_written = self.written.reshape(-1)

    # ---- rows

    def put(self, indexes: np.ndarray, rows: torch.Tensor) -> None:
        """Write `rows[i]`, `(n, *shape)` on any device, at `indexes[i]`; no index occurs twice."""
        self._rows[indexes] = self._as_words(rows)
        self._is_written[indexes] = True

    def mark(self, indexes: np.ndarray) -> None:
        """Say that rows have been written whose bytes will come by `land`."""
        self._is_written[indexes] = True

    def land(self, indexes: np.ndarray, rows: torch.Tensor, places: np.ndarray) -> None:
        """Fill in `rows[places[i]]`, on the CPU, at `indexes[i]`; an index that occurs twice has the same place."""
        words = self._as_words(rows)
        first = int(places[0])
        if np.array_equal(places, np.arange(first, first + len(places))):
            self._rows[indexes] = words[first : first + len(places)]
        else:
            self._rows[indexes] = words[places]

    def are_written(self, indexes: np.ndarray) -> np.ndarray:
        """Return for each index whether the row was written; a negative one never was."""
        if not len(self._is_written):
            return np.zeros(len(indexes), dtype=np.bool_)
        written: np.ndarray = self._is_written[indexes] & (indexes >= 0)
        return written

    def take_rows(self, indexes: np.ndarray, out: np.ndarray) -> None:
        """Copy rows to the beginning of `out`, bytes; for negative indexes anything."""
        np.take(self._rows, indexes, axis=0, out=self._words_of(out, len(indexes), self._rows), mode="clip")

    def take_blocks(self, slots: np.ndarray, out: np.ndarray) -> None:
        """Copy whole blocks to the beginning of `out`, bytes; for negative slots anything."""
        np.take(self._blocks, slots, axis=0, out=self._words_of(out, len(slots), self._blocks), mode="clip")

    def add_lacking(self, source: int, target: int) -> tuple[np.ndarray, np.ndarray]:
        """Copy to slot `target` the rows that only slot `source` has; return the indexes of both."""
        offsets = np.flatnonzero(self.written[source] & ~self.written[target])
        sources, targets = source * self._block_size + offsets, target * self._block_size + offsets
        self._rows[targets] = self._rows[sources]
        self._is_written[targets] = True
        return sources, targets

    def num_leading(self, slots: np.ndarray) -> np.ndarray:
        """Return how many rows each slot has from its beginning on without a gap."""
        written = self.written[slots]
        num: np.ndarray = np.where(written.all(axis=1), self._block_size, written.argmin(axis=1))
        return num

    # ---- forgetting

    def forget_rows(self, indexes: np.ndarray) -> None:
        self._is_written[indexes] = False

    def forget_slots(self, slots: list[int]) -> None:
        self.written[slots] = False

    def clear(self) -> None:
        """Forget all rows, give all memory back."""
        self.written[:] = False
        self._memory.madvise(mmap.MADV_DONTNEED)

    def give_back(self, slots: Iterable[int]) -> None:
        """Give the memory of slots back, as far as whole pages go; they hold nothing."""
        ordered = sorted(slots)
        breaks = [index for index, (a, b) in enumerate(pairwise(ordered), 1) if b != a + 1]
        for first, end in pairwise([0, *breaks, len(ordered)]):
            if first < end:
                self._give_back_run(ordered[first] * self.block_nbytes, (ordered[end - 1] + 1) * self.block_nbytes)

    # ---- inside

    def _as_words(self, rows: torch.Tensor) -> np.ndarray:
        # Each call takes as long as to copy a row, so none is made that would change nothing.
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

    def _words_of(self, out: np.ndarray, num: int, like: np.ndarray) -> np.ndarray:
        width = like.shape[1]
        words: np.ndarray = out[: num * width * like.itemsize].view(self._word).reshape(num, width)
        return words

    def _give_back_run(self, begin: int, end: int) -> None:
        first, last = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last:
            self._memory.madvise(mmap.MADV_DONTNEED, first, last - first)
