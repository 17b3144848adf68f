"""Rows that were handed out: of each span and key the rows, or which of them are missing.

Knows nothing of where they came from. A span's rows are a view of a pooled buffer until `release`; the buffer serves
the next read then. Who keeps rows longer clones them, or never releases: then the buffer is theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from mmcached.wire.errors import LocalProtocolError, MissingRows
from mmcached.worker.prefix_store.buffers import BufferPool

MissingRun = tuple[int, int]
"""Positions `[first, end)` that were not written."""


class LackingSpan(NamedTuple):
    """A span that lacks rows of a key: the first run of them is `[first, end)`."""

    span: int
    key: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class GatheredKey:
    """One key's rows of all spans.

    Attributes:
        rows: `(rows, *shape)`, spans one after the other, perhaps with other rows between them.
        missing: of each span that lacks rows, the first run.
    """

    rows: torch.Tensor
    missing: Mapping[int, MissingRun]


class RowsRead:
    """What one read has found; spans by their number in the call. Release it, or use it in `with`.

    Args:
        first_rows, counts: of each span, in the tensor of every key.
        has_gaps: other rows may lie between those of two spans.
    """

    __slots__ = ("_buffers", "_counts", "_first_rows", "_has_gaps", "_is_released", "_keys", "_pool")

    def __init__(
        self,
        pool: BufferPool[np.ndarray],
        buffers: Sequence[np.ndarray],
        keys: Mapping[str, GatheredKey],
        first_rows: np.ndarray,
        counts: np.ndarray,
        *,
        has_gaps: bool,
    ) -> None:
        self._pool = pool
        self._buffers: Sequence[np.ndarray] = buffers
        self._keys = dict(keys)
        self._first_rows = first_rows
        self._counts = counts
        self._has_gaps = has_gaps
        self._is_released = False

    def __enter__(self) -> RowsRead:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def num_missing(self) -> int:
        """Rows of one key that cannot be had, because their span lacks at least one."""
        return sum(int(self._counts[span]) for gathered in self._keys.values() for span in gathered.missing)

    def get(self, key: str, span: int) -> torch.Tensor:
        """Return the rows `(rows, *shape)` of a span; a view that is valid until `release`.

        Raises:
            MissingRows: at least one was not written; names the first run of such positions.
            LocalProtocolError: it was released.
        """
        gathered = self._gathered(key)
        if span in gathered.missing:
            raise MissingRows(key, *gathered.missing[span])
        first = int(self._first_rows[span])
        return gathered.rows[first : first + int(self._counts[span])]

    def all(self, key: str) -> list[torch.Tensor | None]:
        """Return what `get` would for every span; None where rows are missing. A third of the time for many spans.

        Raises:
            LocalProtocolError: it was released.
        """
        gathered = self._gathered(key)
        if not len(gathered.rows):
            return [None] * len(self._counts)
        if self._has_gaps:
            # What lies before a span and what belongs to it, in turn.
            sizes = np.empty((len(self._counts), 2), dtype=np.int64)
            sizes[:, 1] = self._counts
            sizes[:, 0] = self._first_rows
            sizes[1:, 0] -= self._first_rows[:-1] + self._counts[:-1]
            behind = len(gathered.rows) - int(self._first_rows[-1] + self._counts[-1])
            parts = torch.split(gathered.rows, [*sizes.reshape(-1).tolist(), behind])[1::2]
        else:
            parts = torch.split(gathered.rows, self._counts.tolist())
        spans: list[torch.Tensor | None] = list(parts)
        for span in gathered.missing:
            spans[span] = None
        return spans

    def missing(self) -> Iterator[LackingSpan]:
        """Yield each span that lacks rows, and which; once for each key that lacks them."""
        for key, gathered in self._keys.items():
            for span, run in gathered.missing.items():
                yield LackingSpan(span, key, *run)

    def release(self) -> None:
        """Give the buffers back; the second time changes nothing."""
        if not self._is_released:
            self._is_released = True
            self._keys.clear()
            for buffer in self._buffers:
                self._pool.give_back(buffer)
            self._buffers = ()

    def _gathered(self, key: str) -> GatheredKey:
        if self._is_released:
            raise LocalProtocolError(f"the rows of {key!r} were released")
        return self._keys[key]
