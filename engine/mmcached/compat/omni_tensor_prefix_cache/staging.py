"""Checks the rows that a step stages for deferred keys, and finds the slots of the accepted rows.

Knows nothing of prefixes or of delivery. It raises an error if an engine passes the number of tokens computed after the
step, or another request's number:

    where the step's slots are known      they must be those of these positions
    else, a request's first position      must be at or before the end of its last rows; behind it only for a hit
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from mmcached.compat.omni_tensor_prefix_cache.engine_batch import EngineBatch, Step, num_computed
from mmcached.compat.omni_tensor_prefix_cache.output_keys import OutputKeys
from mmcached.compat.omni_tensor_prefix_cache.slots import BlockTable
from mmcached.compat.omni_tensor_prefix_cache.staged_rows import StagedRows
from mmcached.wire.errors import InvalidRequest, InvariantError
from mmcached.worker.hidden_states.pending_rows import PendingRows


class Staging:
    """Stages rows of a step's outputs; `rows` keeps them."""

    def __init__(self, keys: OutputKeys, pending: PendingRows, num_slots: int) -> None:
        self.rows = StagedRows(keys.known, pending, num_slots)
        self._keys = keys
        self._num_slots = num_slots
        self._ends: dict[str, int] = {}  # end of each request's rows; least recently staged first

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
        """Stage a step's rows of these keys; return the errors of the refused ones, of which nothing is staged.

        Args:
            written: Slots of the step's packed rows, if known.
            hits: Requests that may begin at any position.
        """
        refused: list[InvalidRequest] = []
        accepted: list[tuple[str, int, np.ndarray]] = []
        firsts = num_computed(input_batch, step.req_ids)
        for req_id, start, count, first in zip(step.req_ids, step.starts, step.counts, firsts, strict=True):
            if not count:
                continue
            try:
                slots = table.slots(req_id, first, first + count)
                if written is not None:
                    _compare(req_id, first, slots, written[start : start + count])
                elif req_id not in hits:
                    self._check_start(req_id, first)
            except InvalidRequest as error:
                refused.append(error)
            else:
                self._go_on(req_id, first + count)
                accepted.append((req_id, start, slots))
        for key in keys:
            value = outputs.get(key)
            if isinstance(value, torch.Tensor) and value.ndim == 2 and accepted:
                try:
                    self._check_rows(key, value, step.num_rows)
                except InvalidRequest as error:
                    refused.append(error)
                else:
                    self.rows.stage(key, value[: step.num_rows], accepted)
        return refused

    def commit(self, req_ids: Iterable[str]) -> None:
        """Write the staged rows of requests that end."""
        ended = list(req_ids)
        self.rows.commit(ended)
        for req_id in ended:
            self._ends.pop(req_id, None)

    def discard(self, req_id: str) -> None:
        """Remove a request and its staged rows; an unknown request changes nothing."""
        self.rows.discard(req_id)
        self._ends.pop(req_id, None)

    def clear(self) -> None:
        self.rows.clear()
        self._ends.clear()

    def check_integrity(self) -> None:
        """Raise InvariantError if more ends are kept than there are slots, or the staged rows are inconsistent."""
        self.rows.check_integrity()
        if len(self._ends) > self._num_slots:
            raise InvariantError(f"{len(self._ends)} requests are known for {self._num_slots} slots")

    def _go_on(self, req_id: str, end: int) -> None:
        """Record the end of a request's rows, for at most as many requests as there are slots."""
        self._ends.pop(req_id, None)
        self._ends[req_id] = end
        if len(self._ends) > self._num_slots:
            del self._ends[next(iter(self._ends))]

    def _check_start(self, req_id: str, first: int) -> None:
        expected = self._ends.get(req_id, first)
        if first > expected:
            limit = f"rows of {req_id} go on at {expected}: the number before the step is needed, or a hit"
            raise InvalidRequest("num_computed_tokens_cpu", first, limit)

    def _check_rows(self, key: str, value: torch.Tensor, num_rows: int) -> None:
        if len(value) < num_rows:
            raise InvalidRequest(key, len(value), f"must have at least {num_rows} rows")
        if key in self._keys.known:
            self._keys.known[key].spec.check_rows(value)
        # A key known by two lengths may still be refused: staged rows need a key that stays.
        self._keys.declare(key, value.shape[1], value.dtype)


def _compare(req_id: str, first: int, slots: np.ndarray, written: np.ndarray) -> None:
    """Compare the slots of a request's positions with those that the step has written."""
    differ = slots != written
    if differ.any():
        at = int(differ.argmax())
        limit = f"position {first + at} of {req_id} has slot {slots[at]}, the step has written {written[at]} for it"
        raise InvalidRequest("num_computed_tokens_cpu", first, f"{limit}: the number before the step is needed")
