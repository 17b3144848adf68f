"""Rows of running requests that get their slots only when the request ends.

Knows nothing of slots. Everything kept is a copy, because an engine reuses its output buffers; copies stay on their
device.

    req_id -> [(key, first position, rows), …] in the order they were staged: where two overlap, the later one is right
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from mmcached.worker.input_batch import InputBatch


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows `(n, width)` of positions `first_position …` of one key, owned."""

    first_position: int
    rows: torch.Tensor


class DeferredRows:
    """What is staged, per request, in order of time."""

    def __init__(self) -> None:
        self._chunks: dict[str, list[tuple[str, StagedRows]]] = {}

    def stage(
        self,
        key: str,
        rows: torch.Tensor,
        query_start_loc: Sequence[int] | torch.Tensor,
        input_batch: InputBatch,
        num_scheduled_tokens: Mapping[str, int],
    ) -> None:
        """Copy each request's part of a step's `(tokens, width)` rows; what lies beyond their end is left out."""
        for req_id in input_batch.req_ids:
            start = int(query_start_loc[input_batch.req_id_to_index[req_id]])
            own = rows[start : start + num_scheduled_tokens.get(req_id, 0)]
            if len(own):
                staged = StagedRows(input_batch.num_computed(req_id), own.detach().clone())
                self._chunks.setdefault(req_id, []).append((key, staged))

    def chunks(self, req_id: str) -> Sequence[tuple[str, StagedRows]]:
        return self._chunks.get(req_id, ())

    def discard(self, req_id: str) -> None:
        """Forget a request; an unknown one changes nothing."""
        self._chunks.pop(req_id, None)

    def clear(self) -> None:
        self._chunks.clear()

    @property
    def num_rows(self) -> int:
        return sum(len(staged.rows) for chunks in self._chunks.values() for _, staged in chunks)
