"""Reads the rows of many spans, one gather per key, and holds them until they are released.

A span's rows are a view of a pooled buffer; after `release` the buffer serves the next read. To keep rows longer, clone
them, or never release: then the buffer leaves the pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from mmcached.wire.errors import LocalProtocolError, MissingRows
from mmcached.worker.hidden_states.buffer_pool import BufferPool
from mmcached.worker.hidden_states.by_content.layout import Runs
from mmcached.worker.hidden_states.row_arena import RowArena, first_missing


class LackingSpan(NamedTuple):
    """Span with missing rows of a key: the first missing run is `[first, end)`."""

    span: int
    key: str
    first: int
    end: int


class _KeyRows(NamedTuple):
    """Rows of one key in all spans, `(rows, *shape)`; the first missing run of positions by span."""

    rows: torch.Tensor
    missing: Mapping[int, tuple[int, int]]


class RowsRead:
    """Rows of one read, by span number. Release it, or use it in `with`.

    The arenas must have the bytes of all written rows; `indexes` are of the rows of all runs, one run per span.
    """

    __slots__ = ("_buffers", "_counts", "_first_rows", "_is_released", "_keys", "_pool")

    def __init__(
        self,
        arenas: Iterable[RowArena],
        runs: Runs,
        indexes: np.ndarray,
        firsts: Sequence[int],
        pool: BufferPool[np.ndarray],
    ) -> None:
        self._pool = pool
        self._buffers: list[np.ndarray] = []
        self._keys: dict[str, _KeyRows] = {}
        self._first_rows = runs.first_rows
        self._counts = runs.counts
        self._is_released = False
        for arena in arenas:
            spec = arena.spec
            missing = _missing(arena.are_written(indexes), runs, firsts)
            if len(missing) == len(firsts):
                rows = torch.empty((0, *spec.shape), dtype=spec.dtype)
            else:
                nbytes = len(indexes) * spec.row_nbytes
                buffer = pool.take_buffer(nbytes)
                self._buffers.append(buffer)
                rows = torch.from_numpy(buffer[:nbytes]).view(spec.dtype).view(len(indexes), *spec.shape)
                arena.copy_rows(indexes, rows)
            self._keys[spec.name] = _KeyRows(rows, missing)

    def __enter__(self) -> RowsRead:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def num_missing(self) -> int:
        """Number of unavailable rows, added up over keys: all rows of a span that lacks at least one."""
        return sum(int(self._counts[span]) for _, missing in self._keys.values() for span in missing)

    def get(self, key: str, span: int) -> torch.Tensor:
        """Return the rows `(rows, *shape)` of a span; a view that is valid until `release`.

        Raises `MissingRows` with the first run of missing positions, `LocalProtocolError` after `release`.
        """
        rows, missing = self._rows_of(key)
        if span in missing:
            raise MissingRows(key, *missing[span])
        first = int(self._first_rows[span])
        return rows[first : first + int(self._counts[span])]

    def all(self, key: str) -> list[torch.Tensor | None]:
        """Return `get` for every span, None for spans with missing rows, in a third of the time for many spans."""
        rows, missing = self._rows_of(key)
        if not len(rows):
            return [None] * len(self._counts)
        spans: list[torch.Tensor | None] = list(torch.split(rows, self._counts.tolist()))
        for span in missing:
            spans[span] = None
        return spans

    def missing(self) -> Iterator[LackingSpan]:
        for key, (_, missing) in self._keys.items():
            for span, run in missing.items():
                yield LackingSpan(span, key, *run)

    def release(self) -> None:
        """Give the buffers back. Idempotent."""
        if not self._is_released:
            self._is_released = True
            self._keys.clear()
            for buffer in self._buffers:
                self._pool.give_back(buffer)
            self._buffers.clear()

    def _rows_of(self, key: str) -> _KeyRows:
        if self._is_released:
            raise LocalProtocolError(f"the rows of {key!r} were released")
        return self._keys[key]


def _missing(written: np.ndarray, runs: Runs, firsts: Sequence[int]) -> dict[int, tuple[int, int]]:
    missing: dict[int, tuple[int, int]] = {}
    if not written.all():
        spans = zip(firsts, runs.first_rows.tolist(), runs.counts.tolist(), strict=True)
        for number, (position, start, count) in enumerate(spans):
            run = first_missing(written[start : start + count])
            if run is not None:
                missing[number] = (position + run[0], position + run[1])
    return missing
