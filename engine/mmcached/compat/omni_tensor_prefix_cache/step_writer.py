"""Writes the outputs of steps to the rows of their slots.

Invariant: after a step has written its slots, each key has there the step's rows or no rows. Rows of another call in
the same step stay if this call has no hidden states or no outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch

from mmcached.compat.omni_tensor_prefix_cache.output_keys import OutputKeys
from mmcached.compat.omni_tensor_prefix_cache.staged_rows import StagedRows
from mmcached.compat.omni_tensor_prefix_cache.step_outputs import StepOutputs
from mmcached.wire.errors import InvalidRequest
from mmcached.worker.hidden_states.pending_rows import PendingRows
from mmcached.worker.hidden_states.row_arena import RowArena
from mmcached.worker.hidden_states.schema import KeySpec


class SlotStepWriter:
    """Writes a step's rows to their slots, and returns them for merging in the same step.

    Attributes:
        outputs: The outputs that the current step has written.
    """

    def __init__(
        self, hidden: RowArena, keys: OutputKeys, pending: PendingRows, staged: StagedRows, num_slots: int
    ) -> None:
        self.outputs = StepOutputs()
        self._hidden = hidden
        self._keys = keys
        self._pending = pending
        self._staged = staged
        self._tenants = np.zeros(num_slots, dtype=np.int64)  # number of the last step that wrote each slot
        self._step_number = 1

    def begin_step(self) -> None:
        self._step_number += 1
        self.outputs.clear()

    def write(
        self,
        slots: np.ndarray,
        hidden_states: torch.Tensor | None,
        outputs: Mapping[str, Any] | None,
        *,
        hidden_states_cpu: torch.Tensor | None,
        skipped: Collection[str],
        padded: int,
    ) -> list[InvalidRequest]:
        """Write hidden states and all keys, except the `skipped` ones, to `slots`; return the errors of the keys.

        Args:
            padded: Rows of the step including padding.
        """
        self.outputs.begin(slots)
        self._pending.poll()
        # If an error is raised from here on, no row of an earlier step is left in these slots.
        self.forget(slots, has_hidden=hidden_states is not None, has_outputs=outputs is not None)
        errors: list[InvalidRequest] = []
        with self._pending:
            if hidden_states is not None:
                try:
                    rows = hidden_rows(self._hidden.spec, hidden_states, hidden_states_cpu, len(slots))
                    self._put(self._hidden, rows, slots)
                except InvalidRequest as error:
                    errors.append(error)
            if outputs is not None:
                errors += self._put_outputs(outputs, skipped, slots, padded)
        return errors

    def forget(self, slots: np.ndarray, *, has_hidden: bool = True, has_outputs: bool = True) -> None:
        """Assign slots to the current step: remove the rows of the given kinds there, and all rows of earlier steps."""
        arenas = self._keys.arenas
        former = slots
        if not has_hidden or (arenas and not has_outputs):
            former = slots[self._tenants[slots] != self._step_number]
        self._tenants[slots] = self._step_number
        self._pending.forget(self._hidden, slots if has_hidden else former)
        for arena in arenas:
            self._pending.forget(arena, slots if has_outputs else former)
        self._staged.forget(slots)

    def on_host(self, arena: RowArena, rows: torch.Tensor, num_rows: int) -> torch.Tensor:
        """Return the first `num_rows` of a step's rows on the CPU; from the arena, if they were copied there."""
        slots = self.outputs.take_written(arena.spec.name, rows, num_rows)
        if slots is not None and arena.are_written(slots).all():
            found = torch.empty((num_rows, *arena.spec.shape), dtype=arena.spec.dtype)
            self._pending.read(arena, slots, found)
            return found
        if rows.shape[0] != num_rows:
            rows = rows[:num_rows]
        return rows.detach().cpu() if rows.requires_grad or not rows.is_cpu else rows

    def _put_outputs(
        self, outputs: Mapping[str, Any], skipped: Collection[str], slots: np.ndarray, padded: int
    ) -> list[InvalidRequest]:
        lengths = (len(slots), padded)
        errors = self._keys.observe(outputs, lengths, skipped)
        for key, arena in tuple(self._keys.known.items()):
            value = outputs.get(key) if key not in skipped else None
            if value is None:
                continue
            try:
                rows = arena.spec.check_rows(value)
                if len(rows) not in lengths:
                    more = "; it is no key any more" if self._keys.refuse(key) else ""
                    raise InvalidRequest(key, len(rows), f"must have {len(slots)} or {padded} rows{more}")
                self._put(arena, rows, slots)
            except InvalidRequest as error:
                errors.append(error)
        for key, arena in self._keys.undecided.items():
            if self._keys.may_be_rows(key, outputs.get(key)):
                self._put(arena, outputs[key], slots)
        return errors

    def _put(self, arena: RowArena, rows: torch.Tensor, slots: np.ndarray) -> None:
        if rows.shape[0] != len(slots):  # no new view otherwise: each takes as long as to write a row
            rows = rows[: len(slots)]
        if self._pending.put(arena, rows, slots):
            self.outputs.add(arena.spec.name, rows, slots)


def hidden_rows(spec: KeySpec, hidden_states: torch.Tensor, staged: torch.Tensor | None, num_rows: int) -> torch.Tensor:
    """Return the tensor to take hidden states from: `staged` if given; both are checked.

    Raises:
        InvalidRequest: One of them does not fit.
    """
    rows = at_least(spec.check_rows(hidden_states), num_rows, spec.name)
    if staged is None:
        return rows
    field = "hidden_states_cpu"
    checked = spec.check_rows(staged, field=field)
    if not checked.is_cpu or not checked.is_contiguous():
        raise InvalidRequest(field, str(checked.device), "must be contiguous on the CPU")
    return at_least(checked, num_rows, field)


def at_least(rows: torch.Tensor, num_rows: int, field: str) -> torch.Tensor:
    """Return `rows` if there are at least `num_rows`; else raise InvalidRequest."""
    if rows.shape[0] < num_rows:  # `len` takes three times as long
        raise InvalidRequest(field, len(rows), f"must have at least {num_rows} rows")
    return rows
