"""A step's rows, request by request, behind the cached rows of those that are hits.

Knows nothing of keys or of when rows are written. Every result is a copy of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from mmcached.wire.errors import InvariantError
from mmcached.worker.omni.input_batch import BlockTable, EngineBatch, Step, num_computed
from mmcached.worker.omni.missing import MissingRun
from mmcached.worker.omni.row_store import RowStore

Prefixes = Mapping[str, np.ndarray]
"""Request id -> the slots of the positions before its first row of the step."""


class Merger:
    """Which requests are hits of the step, and what was asked for behind hits.

    Attributes:
        hits: request ids.
        row_queries, row_hits: rows asked for behind hits, and delivered.
    """

    def __init__(self) -> None:
        self.hits: set[str] = set()
        self.row_queries = 0
        self.row_hits = 0

    def prefixes(self, step: Step, input_batch: EngineBatch, table: BlockTable) -> Prefixes:
        """Return the slots of each hit's prefix.

        Raises:
            InvalidRequest: a block table does not reach so far, or names a slot that does not exist.
        """
        req_ids = [req_id for req_id in step.req_ids if req_id in self.hits] if self.hits else []
        computed = zip(req_ids, num_computed(input_batch, req_ids), strict=True)
        return {req_id: table.slots(req_id, 0, end) for req_id, end in computed}

    def merge(
        self, store: RowStore, rows: torch.Tensor, step: Step, prefixes: Prefixes, missing: list[MissingRun]
    ) -> dict[str, torch.Tensor]:
        """Return request id -> its prefix and its own of `rows`; what lacks rows is added to `missing` instead."""
        if not prefixes:
            return {req_id: own.clone() for req_id, own in zip(step.req_ids, step.parts(rows), strict=True)}
        merged = {}
        for req_id, own in zip(step.req_ids, step.parts(rows), strict=True):
            slots = prefixes.get(req_id)
            if slots is None:
                merged[req_id] = own.clone()
            elif self._is_there(store, req_id, slots, missing):
                out = torch.empty((len(slots) + len(own), store.width), dtype=store.dtype)
                store.read_into(slots, out[: len(slots)])
                out[len(slots) :] = own
                merged[req_id] = out
        return merged

    def merge_undecided(
        self, store: RowStore, rows: torch.Tensor, step: Step, prefixes: Prefixes, missing: list[MissingRun]
    ) -> dict[str, torch.Tensor]:
        """Return the same where it is not known yet whether `rows` are rows: of no prefix then."""
        merged = {}
        for req_id, own in zip(step.req_ids, step.parts(rows), strict=True):
            slots = prefixes.get(req_id, ())
            if len(slots):
                self.row_queries += len(slots)
                missing.append(MissingRun(req_id, store.key, 0, len(slots)))
            else:
                merged[req_id] = own.clone()
        return merged

    def miss_undecided(self, store: RowStore, prefixes: Prefixes, missing: list[MissingRun]) -> None:
        """Add the prefixes that may have had an undecided key, which the step lacks, to `missing`."""
        for req_id, slots in prefixes.items():
            if store.has_any(slots):
                self.row_queries += len(slots)
                missing.append(MissingRun(req_id, store.key, 0, len(slots)))

    def prefixes_alone(self, store: RowStore, prefixes: Prefixes, missing: list[MissingRun]) -> dict[str, torch.Tensor]:
        """Return request id -> its prefix, of a key that the step lacks.

        A prefix of which no row was written is one that never had this key.
        """
        found = {}
        for req_id, slots in prefixes.items():
            if store.has_any(slots) and self._is_there(store, req_id, slots, missing):
                found[req_id] = torch.empty((len(slots), store.width), dtype=store.dtype)
                store.read_into(slots, found[req_id])
        return found

    def check_integrity(self) -> None:
        if self.row_hits > self.row_queries:
            raise InvariantError(f"{self.row_hits} rows were delivered, {self.row_queries} asked for")

    def _is_there(self, store: RowStore, req_id: str, slots: np.ndarray, missing: list[MissingRun]) -> bool:
        self.row_queries += len(slots)
        run = store.first_missing(slots)
        if run is not None:
            missing.append(MissingRun(req_id, store.key, *run))
            return False
        self.row_hits += len(slots)
        return True
