"""A step's rows on their way to their slots: what fits is written, what does not costs its own key only.

Knows nothing of requests or of former tenants: the slots that it is given hold nothing, or what another call of the
same step has written.

Invariant: after a step has written its slots, each key has there the step's rows, or nothing. Only of a key that the
call says nothing about, rows of another call in the same step stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch

from mmcached.wire.errors import InvalidRequest
from mmcached.worker.omni.host_copies import HostCopies
from mmcached.worker.omni.keys import KeyBook
from mmcached.worker.omni.row_store import RowStore

HIDDEN_STATES = "hidden_states"


class StepWriter:
    """Between a step's outputs and the rows of hidden states and keys."""

    def __init__(self, hidden: RowStore, keys: KeyBook, host: HostCopies) -> None:
        self._hidden = hidden
        self._keys = keys
        self._host = host

    def write_hidden(
        self, hidden_states: torch.Tensor, staged: torch.Tensor | None, slots: np.ndarray
    ) -> list[InvalidRequest]:
        """Write hidden states to `slots`; return what went wrong."""
        self._hidden.forget(slots)
        try:
            rows = self.hidden_rows(hidden_states, staged, len(slots))
            self._hidden.write(slots, self._host.make(HIDDEN_STATES, rows, len(slots)))
        except InvalidRequest as error:
            return [error]
        return []

    def write_outputs(
        self, outputs: Mapping[str, Any], skipped: Collection[str], slots: np.ndarray, padded: int
    ) -> list[InvalidRequest]:
        """Write all keys to `slots`, but those that are `skipped`; return what went wrong.

        Args:
            padded: rows of the step with its padding.
        """
        for store in (*self._keys.known.values(), *self._keys.undecided()):
            store.forget(slots)
        errors = self._keys.observe(outputs, (len(slots), padded), skipped)
        for key, store in tuple(self._keys.known.items()):
            value = outputs.get(key) if key not in skipped else None
            if value is not None:
                try:
                    self.write_key(store, value, slots, padded)
                except InvalidRequest as error:
                    errors.append(error)
        for store in self._keys.undecided():
            if self._keys.may_be_rows(store.key, outputs.get(store.key)):
                store.write(slots, self._host.make(store.key, outputs[store.key], len(slots)))
        return errors

    def write_key(self, store: RowStore, value: object, slots: np.ndarray, padded: int) -> None:
        """Write one key. Raises: InvalidRequest."""
        rows = store.check_rows(value, store.key)
        if len(rows) not in (len(slots), padded):
            was_discovered = self._keys.refuse(store.key)
            limit = f"must have {len(slots)} or {padded} rows"
            raise InvalidRequest(store.key, len(rows), limit + ("; it is no key any more" if was_discovered else ""))
        store.write(slots, self._host.make(store.key, rows, len(slots)))

    def hidden_rows(self, hidden_states: torch.Tensor, staged: torch.Tensor | None, num_rows: int) -> torch.Tensor:
        """Return the tensor to take hidden states from: `staged` if given, after it was compared with the other.

        Raises:
            InvalidRequest: one of them does not fit.
        """
        rows = at_least(self._hidden.check_rows(hidden_states, HIDDEN_STATES), num_rows, HIDDEN_STATES)
        if staged is None:
            return rows
        field = "hidden_states_cpu"
        checked = self._hidden.check_rows(staged, field)
        if not checked.is_cpu or not checked.is_contiguous():
            raise InvalidRequest(field, str(checked.device), "must be contiguous on the CPU")
        return at_least(checked, num_rows, field)


def at_least(rows: torch.Tensor, num_rows: int, field: str) -> torch.Tensor:
    """Return `rows` if they are so many. Raises: InvalidRequest."""
    if rows.shape[0] < num_rows:  # `len` takes three times as long
        raise InvalidRequest(field, len(rows), f"must have at least {num_rows} rows")
    return rows


def raise_first(errors: list[InvalidRequest]) -> None:
    """Raise the first of them, with notes of the others, if there is any."""
    for other in errors[1:]:
        errors[0].add_note(str(other))
    if errors:
        raise errors[0]
