"""Rows of running requests that get their slots only when the request ends.

Knows nothing of slots. What is kept is a copy, because an engine reuses its output buffers; it stays on its device. A
step's rows of a key are copied at once for all requests; a request that outlives many of its steps gets a copy of its
own, so that it does not keep its neighbours' rows alive.

    req_id -> key -> ranges   (first position, rows, time): ascending, no position twice
                     pieces   tensors that hold their rows, one after the other
    req_id -> position where its next rows begin; earlier, if rows are computed again

Rows that are computed again replace all from their first position on: what the request had behind them lies in blocks
that it has no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from mmcached.wire.errors import InvariantError

MAX_PIECES = 32
"""So many tensors per request and key; then they become one."""


class StagedRange(NamedTuple):
    first: int
    num_rows: int
    time: int

    @property
    def end(self) -> int:
        return self.first + self.num_rows


@dataclass(slots=True)
class StagedKey:
    """All that a request has staged of one key."""

    ranges: list[StagedRange] = field(default_factory=list)
    pieces: list[torch.Tensor] = field(default_factory=list)

    def cut(self, position: int) -> None:
        """Forget all rows from `position` on."""
        while self.ranges and self.ranges[-1].end > position:
            last = self.ranges.pop()
            kept = max(position - last.first, 0)
            if kept:
                self.ranges.append(last._replace(num_rows=kept))
            self._cut_pieces(last.num_rows - kept)

    def add(self, staged: StagedRange, rows: torch.Tensor) -> None:
        self.ranges.append(staged)
        self.pieces.append(rows)
        if len(self.pieces) > MAX_PIECES:
            self.pieces = [torch.cat(self.pieces)]

    def _cut_pieces(self, num_rows: int) -> None:
        while num_rows:
            last = self.pieces.pop()
            if len(last) > num_rows:
                self.pieces.append(last[:-num_rows])
            num_rows -= min(len(last), num_rows)


class DeferredRows:
    """What is staged, by request."""

    def __init__(self) -> None:
        self._staged: dict[str, dict[str, StagedKey]] = {}
        self._next: dict[str, int] = {}

    def next_position(self, req_id: str) -> int | None:
        """Return where the request's rows go on; None if it has had none."""
        return self._next.get(req_id)

    def go_on(self, req_id: str, first: int, num_rows: int) -> None:
        """Note that the request's rows `[first, first + num_rows)` are computed; forget what it had from there on."""
        if first < self._next.get(req_id, 0):
            for staged in self._staged.get(req_id, {}).values():
                staged.cut(first)
        self._next[req_id] = first + num_rows

    def stage(self, key: str, copied: torch.Tensor, parts: Sequence[tuple[str, int, StagedRange]]) -> None:
        """Keep `copied[start : start + rows]`, which is owned, for each part `(req_id, start, range)`."""
        for req_id, start, staged in parts:
            keys = self._staged.setdefault(req_id, {})
            keys.setdefault(key, StagedKey()).add(staged, copied[start : start + staged.num_rows])

    def keys(self, req_id: str) -> Iterator[tuple[str, StagedKey]]:
        """Yield the request's keys that have rows."""
        yield from ((key, kept) for key, kept in self._staged.get(req_id, {}).items() if kept.ranges)

    def has(self, key: str) -> bool:
        """Say whether any request has staged rows of it."""
        return any(key in keys and keys[key].ranges for keys in self._staged.values())

    def discard(self, req_id: str) -> None:
        """Forget a request; an unknown one changes nothing."""
        self._staged.pop(req_id, None)
        self._next.pop(req_id, None)

    def clear(self) -> None:
        self._staged.clear()
        self._next.clear()

    @property
    def is_empty(self) -> bool:
        return not self._staged and not self._next

    @property
    def num_rows(self) -> int:
        return sum(staged.num_rows for _, kept in self._all() for staged in kept.ranges)

    def check_integrity(self) -> None:
        for key, kept in self._all():
            held, named = sum(map(len, kept.pieces)), sum(staged.num_rows for staged in kept.ranges)
            if held != named:
                raise InvariantError(f"{key!r}: {held} rows are staged, {named} positions")

    def _all(self) -> Iterator[tuple[str, StagedKey]]:
        for keys in self._staged.values():
            yield from keys.items()
