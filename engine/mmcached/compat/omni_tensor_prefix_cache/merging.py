"""Joins the cached rows of each hit's prefix with its rows of the step.

Knows nothing of keys or of when rows are written. Every result is a copy of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from mmcached.compat.omni_tensor_prefix_cache.engine_batch import EngineBatch, Step, num_computed
from mmcached.compat.omni_tensor_prefix_cache.slots import BlockTable
from mmcached.wire.errors import InvariantError, MissingRows
from mmcached.worker.hidden_states.pending_rows import PendingRows
from mmcached.worker.hidden_states.row_arena import RowArena, first_missing

Prefixes = Mapping[str, np.ndarray]
"""Request id -> the slots of the positions before its first row of the step."""


class MissingRun(NamedTuple):
    """The first run of missing rows of a request's `key`: positions `[first, end)`."""

    request_id: str
    key: str
    first: int
    end: int


class MissingPrefix(MissingRows):
    """Rows of a hit's prefix are missing.

    To continue: use `merged`; recompute each request of `missing`, from position `first` at the latest.

    Attributes:
        merged: The result of the call, without the entries that lack rows.
        missing: The first missing run of each request and key that lacks rows, in the order of requests.
        details: `request_id`, `key`, `first` and `end` of the first of these.
    """

    code = "missing_prefix"
    # An error that came over a wire has its details only.
    merged: Mapping[str, Any] = {}
    missing: Sequence[MissingRun] = ()

    def __init__(self, missing: Sequence[MissingRun], merged: Mapping[str, Any]) -> None:
        request_id, key, first, end = missing[0]
        super().__init__(key, first, end)
        more = f"; {len(missing) - 1} more in `missing`" if len(missing) > 1 else ""
        self.args = (f"request {request_id}: {self.args[0]}{more}",)
        self.details["request_id"] = request_id
        self.merged = merged
        self.missing = tuple(missing)


class Merger:
    """Merges rows for the requests that are hits of the step.

    Attributes:
        hits: Request ids.
        row_queries, row_hits: Rows requested for hits' prefixes, and rows delivered.
    """

    def __init__(self, pending: PendingRows) -> None:
        self.hits: set[str] = set()
        self.row_queries = 0
        self.row_hits = 0
        self._pending = pending

    def prefixes(self, step: Step, input_batch: EngineBatch, table: BlockTable) -> Prefixes:
        """Return the slots of each hit's prefix.

        Raises:
            InvalidRequest: A block table is too short, or names a slot that does not exist.
        """
        req_ids = [req_id for req_id in step.req_ids if req_id in self.hits]
        computed = zip(req_ids, num_computed(input_batch, req_ids), strict=True)
        return {req_id: table.slots(req_id, 0, end) for req_id, end in computed}

    def merge(
        self,
        arena: RowArena,
        rows: torch.Tensor | None,
        step: Step,
        prefixes: Prefixes,
        missing: list[MissingRun],
        *,
        is_known: bool = True,
    ) -> dict[str, torch.Tensor]:
        """Return request id -> its prefix and its own of `rows`; a request that lacks rows goes to `missing` instead.

        Args:
            rows: `(num_rows, width)` on the CPU; None: the step lacks the key, and hits get the prefix alone. A prefix
            without
                any written row then counts as one that never had this key.
            is_known: False: it is undecided whether `rows` are rows, so every prefix of them is missing.
        """
        parts = step.parts(rows) if rows is not None else [_NO_ROWS] * len(step.req_ids)
        if not prefixes and rows is not None:
            return {req_id: own.clone() for req_id, own in zip(step.req_ids, parts, strict=True)}
        merged = {}
        for req_id, own in zip(step.req_ids, parts, strict=True):
            slots = prefixes.get(req_id)
            if slots is None or (not is_known and not len(slots)):
                if rows is not None:
                    merged[req_id] = own.clone()
                continue
            written = arena.are_written(slots)
            if rows is None and not written.any():
                continue
            self.row_queries += len(slots)
            run = first_missing(written) if is_known else (0, len(slots))
            if run is not None:
                missing.append(MissingRun(req_id, arena.spec.name, *run))
                continue
            self.row_hits += len(slots)
            merged[req_id] = out = torch.empty((len(slots) + len(own), *arena.spec.shape), dtype=arena.spec.dtype)
            self._pending.read(arena, slots, out[: len(slots)])
            if len(own):
                out[len(slots) :] = own
        return merged

    def check_integrity(self) -> None:
        if self.row_hits > self.row_queries:
            raise InvariantError(f"{self.row_hits} rows were delivered, {self.row_queries} asked for")


_NO_ROWS = torch.empty(0)
