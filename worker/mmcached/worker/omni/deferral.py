"""Rows that get their slots when their request ends: which positions they are accepted for, and where they go.

Knows nothing of prefixes or of delivery. The positions of a step's rows begin at the number of tokens computed BEFORE
the step. An engine that hands in the number after it, or another request's, is told so:

    the slots of these positions          must be those that the step has written, where they are known
    the first position of a request       must be where its last rows have ended, or before; behind it for a hit only

Before it: the rows are computed again, after a preemption, and replace all that the request had from there on. Rows
whose slot another step has written since they were staged belong to a former tenant and are not written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mmcached.wire.errors import InvalidRequest
from mmcached.worker.omni.deferred_rows import DeferredRows, StagedRange
from mmcached.worker.omni.input_batch import BlockTable, EngineBatch, Step, num_computed
from mmcached.worker.omni.keys import KeyBook
from mmcached.worker.omni.slots import SlotBook


class Deferral:
    """What is staged, between a step's outputs and the rows of the keys."""

    def __init__(self, keys: KeyBook, slots: SlotBook) -> None:
        self.rows = DeferredRows()
        self._keys = keys
        self._slots = slots

    def stage(
        self,
        outputs: Mapping[str, Any],
        keys: Collection[str],
        step: Step,
        input_batch: EngineBatch,
        table: BlockTable,
        *,
        written: np.ndarray | None,
        hits: Collection[str],
    ) -> list[InvalidRequest]:
        """Copy a step's rows of these keys; return what was refused, of which nothing is staged.

        Args:
            written: slots of the step's packed rows, if known.
            hits: requests that may begin anywhere.
        """
        refused: list[InvalidRequest] = []
        accepted: list[tuple[str, int, StagedRange]] = []
        time = self._slots.tick()
        firsts = num_computed(input_batch, step.req_ids)
        for req_id, start, count, first in zip(step.req_ids, step.starts, step.counts, firsts, strict=True):
            if not count:
                continue
            try:
                self._check_start(req_id, first, is_hit=req_id in hits)
                if written is not None:
                    _check_slots(req_id, first, table, written[start : start + count])
            except InvalidRequest as error:
                refused.append(error)
            else:
                self.rows.go_on(req_id, first, count)
                accepted.append((req_id, start, StagedRange(first, count, time)))
        for key in keys:
            value = outputs.get(key)
            if isinstance(value, torch.Tensor) and value.ndim == 2 and accepted:
                try:
                    self._check_rows(key, value, step.num_rows)
                except InvalidRequest as error:
                    refused.append(error)
                else:
                    self.rows.stage(key, value[: step.num_rows].detach().clone(), accepted)
        return refused

    def commit(self, req_ids: Iterable[str], input_batch: EngineBatch, table: BlockTable) -> list[InvalidRequest]:
        """Write what these requests have staged, one write for each key; return what does not fit and stays staged."""
        refused: list[InvalidRequest] = []
        by_key: dict[str, list[tuple[Sequence[torch.Tensor], np.ndarray, np.ndarray]]] = {}
        for req_id in req_ids:
            staged = list(self.rows.keys(req_id)) if req_id in input_batch.req_id_to_index else []
            try:
                placed = [(key, kept.pieces, *_place(req_id, kept.ranges, table)) for key, kept in staged]
            except InvalidRequest as error:
                refused.append(error)
                continue
            for key, pieces, slots, times in placed:
                by_key.setdefault(key, []).append((pieces, slots, times))
            self.rows.discard(req_id)
        for key, parts in by_key.items():
            self._write(
                key,
                torch.cat([piece for pieces, _, _ in parts for piece in pieces]).cpu(),
                np.concatenate([slots for _, slots, _ in parts]),
                np.concatenate([times for _, _, times in parts]),
            )
        return refused

    def _write(self, key: str, rows: torch.Tensor, slots: np.ndarray, times: np.ndarray) -> None:
        wanted = np.flatnonzero(self._slots.are_as_of(slots, times))
        # Of rows of several requests for one slot the last in time: the first of its slot in reversed order of time.
        newest_first = wanted[np.argsort(times[wanted], kind="stable")][::-1]
        _, at = np.unique(slots[newest_first], return_index=True)
        chosen = newest_first[at]
        self._keys.known[key].write(slots[chosen], rows[torch.from_numpy(chosen)])

    def _check_start(self, req_id: str, first: int, *, is_hit: bool) -> None:
        expected = self.rows.next_position(req_id)
        if first < 0 or (expected is not None and first > expected and not is_hit):
            limit = f"rows of {req_id} go on at {expected}: the number before the step is needed, or a hit"
            raise InvalidRequest("num_computed_tokens_cpu", first, limit)

    def _check_rows(self, key: str, value: torch.Tensor, num_rows: int) -> None:
        if len(value) < num_rows:
            raise InvalidRequest(key, len(value), f"must have at least {num_rows} rows")
        if key in self._keys.known:
            self._keys.known[key].check_rows(value, key)
        # Known by two lengths is not enough: what is staged needs a key that stays.
        self._keys.declare(key, value.shape[1], value.dtype)


def _check_slots(req_id: str, first: int, table: BlockTable, written: np.ndarray) -> None:
    """Compare the slots of a request's positions with those that the step has written."""
    expected = table.slots(req_id, first, first + len(written))
    differ = expected != written
    if differ.any():
        at = int(differ.argmax())
        limit = f"position {first + at} of {req_id} has slot {expected[at]}, the step has written {written[at]} for it"
        raise InvalidRequest("num_computed_tokens_cpu", first, f"{limit}: the number before the step is needed")


def _place(req_id: str, ranges: Sequence[StagedRange], table: BlockTable) -> tuple[np.ndarray, np.ndarray]:
    """Return slot and time of each row of these ranges."""
    runs: list[list[int]] = []  # positions that follow each other, as decode steps stage them, are looked up at once
    for first, num_rows, _ in ranges:
        if runs and runs[-1][1] == first:
            runs[-1][1] += num_rows
        else:
            runs.append([first, first + num_rows])
    slots = np.concatenate([table.slots(req_id, first, end) for first, end in runs])
    return slots, np.repeat([time for _, _, time in ranges], [num_rows for _, num_rows, _ in ranges])
