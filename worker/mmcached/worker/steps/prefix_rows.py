"""Prefix store of rank 0: writes and reads the hidden states that a step's plan names.

    StepPlan.released ──> release           StepPlan.row_epoch ──> reset, if it has changed
    RunChunk (digests) ─> write ──> read ──> rows [first_row, end of the chunk) of each key, or the missing ranges
    the step's end ─────> commit, or withdraw ──> report

Invariant: every row of an answer was computed for exactly these tokens, and an answer has no gap: missing rows are
reported, and the request gets no rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch

from mmcached.wire.errors import InvariantError
from mmcached.wire.messages.engine import PrefixReport, RowsMissing
from mmcached.wire.messages.parts import RequestRows, Rows
from mmcached.wire.messages.worker import RunChunk, StepPlan
from mmcached.worker.hidden_states import RowChunk, RowSpan, RowsRead, TensorPrefixStore
from mmcached.worker.steps.step_result import StepResult


class PrefixRows:
    """Rows of rank 0's prefix store. If `store` is None, no rows before a chunk may be requested."""

    def __init__(self, store: TensorPrefixStore | None) -> None:
        self.store = store
        self._epoch = 0

    def begin(self, plan: StepPlan) -> None:
        """Release the requests that the plan names, or reset the store; must be called even if the step will fail."""
        if self.store is None:
            return
        if plan.row_epoch != self._epoch:
            self._epoch = plan.row_epoch
            self.store.reset()
        self.store.release(plan.released)

    def add_rows(self, chunks: Sequence[RunChunk], outputs: Mapping[str, torch.Tensor], made: StepResult) -> None:
        """Store a step's rows, and add the wanted rows, of the step and before it, to the result.

        Args:
            outputs: by key, `(num_tokens, width)`, chunk after chunk.

        Raises:
            InvariantError: a row was refused, or is neither in the store nor in this chunk.
        """
        if self.store is not None:
            self._write(self.store, chunks, outputs)
        step = _StepRows(chunks, outputs)
        wanted = [index for index, chunk in enumerate(chunks) if chunk.row_keys and chunk.first_row < _end(chunk)]
        behind = [index for index in wanted if chunks[index].first_row < chunks[index].num_computed_tokens]
        if not behind:
            _answer(step, wanted, {}, made)
            return
        if self.store is None:
            raise InvariantError(f"request {chunks[behind[0]].request_id} wants stored rows, but there is no store")
        spans = [
            RowSpan(chunks[index].request_id, chunks[index].first_row, chunks[index].num_computed_tokens)
            for index in behind
        ]
        keys = list(dict.fromkeys(key for index in behind for key in chunks[index].row_keys))
        with self.store.read(spans, keys) as rows:
            before = _rows_before(step, behind, rows, made)
            lacking = {missing.request_id for missing in made.missing}
            wanted = [index for index in wanted if chunks[index].request_id not in lacking]
            _answer(step, wanted, before, made)

    def commit(self) -> PrefixReport:
        """Commit the step; return the changes of the store."""
        return self.store.commit() if self.store is not None else {}

    def withdraw(self) -> PrefixReport:
        """Undo the step; return the evictions made for it."""
        if self.store is None:
            return {}
        self.store.withdraw()
        return self.store.commit()

    def clear(self) -> None:
        if self.store is not None:
            self.store.reset()

    @staticmethod
    def _write(store: TensorPrefixStore, chunks: Sequence[RunChunk], outputs: Mapping[str, torch.Tensor]) -> None:
        rows = [
            RowChunk(
                chunk.request_id, chunk.num_computed_tokens, len(chunk.token_ids), chunk.first_block, chunk.block_hashes
            )
            for chunk in chunks
        ]
        refusals = store.write(rows, outputs)
        if refusals:
            first = refusals[0]
            raise InvariantError(f"{len(refusals)} refused: {first.key!r} of request {first.request_id}: {first.error}")


class _StepRows:
    def __init__(self, chunks: Sequence[RunChunk], outputs: Mapping[str, torch.Tensor]) -> None:
        self.chunks = chunks
        self._outputs = outputs
        self._ends = list(accumulate(len(chunk.token_ids) for chunk in chunks))

    def wanted(self, index: int, key: str) -> torch.Tensor:
        chunk = self.chunks[index]
        rows = self._outputs.get(key)
        if rows is None:
            raise InvariantError(f"request {chunk.request_id} wants {key!r}; the model returns {sorted(self._outputs)}")
        num_rows = _end(chunk) - max(chunk.first_row, chunk.num_computed_tokens)
        return rows[self._ends[index] - num_rows : self._ends[index]]


def _end(chunk: RunChunk) -> int:
    return chunk.num_computed_tokens + len(chunk.token_ids)


def _rows_before(
    step: _StepRows, behind: Sequence[int], rows: RowsRead, made: StepResult
) -> dict[tuple[int, str], torch.Tensor]:
    """Return the rows before those chunks that lack no row, by chunk and key; add the missing ranges to `made`."""
    lacking = set()
    for span, key, first, end in rows.missing():
        chunk = step.chunks[behind[span]]
        if key in chunk.row_keys:
            lacking.add(span)
            made.missing.append(RowsMissing(chunk.request_id, key, first, end))
    return {
        (index, key): rows.get(key, span)
        for span, index in enumerate(behind)
        if span not in lacking
        for key in step.chunks[index].row_keys
    }


def _answer(
    step: _StepRows, wanted: Sequence[int], before: Mapping[tuple[int, str], torch.Tensor], made: StepResult
) -> None:
    for index in wanted:
        chunk = step.chunks[index]
        for key in chunk.row_keys:
            tensor = step.wanted(index, key)
            if (index, key) in before:
                tensor = torch.cat([before[index, key], tensor])
            first = _end(chunk) - len(tensor)
            if chunk.rows_name:
                made.large_rows.append((chunk, key, first, tensor))
                continue
            made.rows.append(RequestRows(chunk.request_id, Rows(key, first, made.add_frame(tensor))))
