"""Writes the rows of a step, and undoes them if the step fails.

    chunks ── hashes: hold sealed blocks ──> blocks: find, or allocate ──> rows, key by key ──> seal blocks with a hash
              of all chunks, before any      so that no chunk's            put into arenas      before that, rows of
              block is allocated             prefix is evicted                                  other tokens may be
              there

Hashes and blocks are taken in the order of the chunks' starts: a chunk that continues a block starts later than the
chunk that fills it in the same step.

Invariant: a row of a sealed block is written once; every row written since the last commit is in the journal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from mmcached.wire.errors import InvalidRequest
from mmcached.worker.hidden_states.by_content.block_pool import RowBlockPool
from mmcached.worker.hidden_states.by_content.layout import Runs, as_array
from mmcached.worker.hidden_states.by_content.packed_rows import PackedRows
from mmcached.worker.hidden_states.by_content.records import RefusedRows, RowChunk
from mmcached.worker.hidden_states.by_content.request_blocks import ABSENT, Chain, RequestChains
from mmcached.worker.hidden_states.pending_rows import PendingRows
from mmcached.worker.hidden_states.row_arena import RowArena
from mmcached.worker.integers import check_integers


class _OpenBlocks(NamedTuple):
    """Open blocks of a request that have got their hash, by a chunk `[start, end)`."""

    chain: Chain
    numbers: Sequence[int]
    start: int
    end: int


class StepWriter:
    """Writes into the blocks and arenas of a store; for its counters see `StoreStats`."""

    def __init__(
        self,
        block_size: int,
        pool: RowBlockPool,
        requests: RequestChains,
        *,
        max_positions: int,
        arenas: Mapping[str, RowArena],
        pending: PendingRows,
    ) -> None:
        self.num_written = self.num_replayed = self.num_dropped = 0
        self._block_size = block_size
        self._max_positions = max_positions
        self._pool = pool
        self._requests = requests
        self._arenas = arenas
        self._pending = pending
        self._journal: list[tuple[RowArena, np.ndarray]] = []

    @property
    def is_open(self) -> bool:
        return bool(self._journal)

    def write(self, chunks: Sequence[RowChunk], outputs: Mapping[str, object]) -> list[RefusedRows]:
        """Store a step's outputs; return the parts that are invalid."""
        request_ids, firsts, nums, _, hashes = _columns(chunks)
        check_integers("chunks", firsts, nums)
        refusals: list[RefusedRows] = []
        wrong: set[int] = set()
        if chunks and (min(firsts) < 0 or min(nums) < 1 or max(firsts) + max(nums) > self._max_positions):
            chunks = self._with_rows(chunks, refusals, wrong)
            request_ids, firsts, nums, _, hashes = _columns(chunks)
        runs = Runs(self._block_size, as_array(firsts), as_array(nums), sum(nums))
        has_hashes = any(hashes)
        open_blocks = self._take_hashes(chunks, refusals, wrong) if has_hashes else []
        with self._pending:
            try:
                found = self._place(request_ids, runs, wrong, firsts if has_hashes else None)
                self._put_all(runs, found, outputs, refusals)
            except BaseException:  # the blocks can be found by hash, but may still hold rows of draft tokens
                for each in open_blocks:
                    self._forget_from(each, each.start)
                raise
            finally:
                for each in open_blocks:
                    for number in each.numbers:
                        self._requests.seal(each.chain, number, self._merge)
        return refusals

    def commit(self) -> None:
        self._journal.clear()

    def withdraw(self) -> None:
        for arena, indexes in self._journal:
            self._pending.forget(arena, indexes)
        self._journal.clear()

    # ---- chunks

    def _with_rows(
        self, chunks: Sequence[RowChunk], refusals: list[RefusedRows], wrong: set[int]
    ) -> Sequence[RowChunk]:
        """Return the chunks that have rows in the outputs; adds those at invalid positions to `wrong`.

        A chunk with an invalid number of rows is assumed to have none: if the outputs have rows for it, they are too
        long.
        """
        with_rows: list[RowChunk] = []
        for chunk in chunks:
            request_id, start, num_rows, _, _ = chunk
            is_wrong = start < 0 or num_rows < 1 or start + num_rows > self._max_positions
            if is_wrong:
                limit = f"request {request_id}: at least 1 row, at positions 0 … {self._max_positions - 1}"
                error = InvalidRequest("chunk", f"{num_rows} rows from {start}", limit)
                refusals.append(RefusedRows("", request_id, error))
            if 0 < num_rows <= self._max_positions:
                if is_wrong:
                    wrong.add(len(with_rows))
                with_rows.append(RowChunk(request_id, 0, num_rows) if is_wrong else chunk)
        return with_rows

    def _take_hashes(
        self, chunks: Sequence[RowChunk], refusals: list[RefusedRows], wrong: set[int]
    ) -> list[_OpenBlocks]:
        """Hold the blocks sealed under the hashes of valid chunks; return the open blocks that get a hash."""
        numbers: Iterable[int] = range(len(chunks))
        if self._requests.of_request.keys() >= {chunk.request_id for chunk in chunks}:
            numbers = [number for number in numbers if chunks[number].block_hashes]  # the other requests have chains
        open_blocks = []
        for number in sorted(numbers, key=lambda number: chunks[number].start):
            if number in wrong:
                continue
            if not chunks[number].block_hashes:
                self._requests.open(chunks[number].request_id)
                continue
            try:
                open_blocks.append(self._attach(chunks[number]))
            except InvalidRequest as error:
                refusals.append(RefusedRows("", chunks[number].request_id, error))
                wrong.add(number)
        return open_blocks

    def _attach(self, chunk: RowChunk) -> _OpenBlocks:
        request_id, start, num_rows, first_block, hashes = chunk
        self._requests.check_hashes(request_id, first_block, hashes)
        chain = self._requests.open(request_id)
        found = _OpenBlocks(chain, self._requests.add_hashes(chain, first_block, hashes), start, start + num_rows)
        self._forget_from(found, found.end)  # rows of rejected draft tokens
        return found

    # ---- blocks

    def _place(
        self, request_ids: Sequence[int], runs: Runs, wrong: Collection[int], starts: Sequence[int] | None
    ) -> list[int]:
        first_blocks = runs.first_blocks.tolist()
        new: list[int] = []
        if runs.are_single_rows and not wrong:  # decode: most requests continue in a block that they hold
            found = self._requests.at(request_ids, first_blocks)
            if ABSENT in found:
                absent = [number for number, block_id in enumerate(found) if block_id == ABSENT]
                for number in sorted(absent, key=starts.__getitem__) if starts else absent:
                    found[number : number + 1] = self._blocks_for(request_ids[number], first_blocks[number], 1, new)
        else:
            num_blocks = runs.num_blocks.tolist()
            parts = [[ABSENT] * num for num in num_blocks]
            for number in sorted(range(len(parts)), key=starts.__getitem__) if starts else range(len(parts)):
                if number not in wrong:
                    first, num = first_blocks[number], num_blocks[number]
                    parts[number] = self._blocks_for(request_ids[number], first, num, new)
            found = [block_id for part in parts for block_id in part]
        if new:
            for arena in self._arenas.values():
                self._pending.forget_blocks(arena, new)
        return found

    def _blocks_for(self, request_id: int, first: int, num_blocks: int, new: list[int]) -> list[int]:
        chain = self._requests.open(request_id)
        if len(chain.block_ids) < first + num_blocks or ABSENT in chain.block_ids[first : first + num_blocks]:
            new += self._requests.place(chain, first, first + num_blocks)
        return chain.block_ids[first : first + num_blocks]

    # ---- rows

    def _put_all(
        self, runs: Runs, found: list[int], outputs: Mapping[str, object], refusals: list[RefusedRows]
    ) -> None:
        """Write all valid outputs; for keys without output, forget rows whose tokens may differ."""
        block_ids = as_array(found)
        rows = PackedRows(runs, found, block_ids, self._pool.is_sealed)
        written = set()
        for key, value in outputs.items():
            try:
                arena = self._arenas.get(key)
                if arena is None:
                    raise InvalidRequest("key", key, "has not been declared")
                self._put(arena, arena.spec.check_rows(value, runs.num_rows), rows)
                written.add(key)
            except InvalidRequest as error:
                refusals.append(RefusedRows(key, None, error))
        if len(written) < len(self._arenas):
            for key in self._arenas.keys() - written:
                self._pending.forget(self._arenas[key], rows.in_open_blocks)
        if rows.has_sealed:
            self._pool.note_changed(block_ids)

    def _put(self, arena: RowArena, values: torch.Tensor, rows: PackedRows) -> None:
        for first, end in rows.parts:
            places, indexes, num_placed = rows.to_write(arena, first, end)
            self.num_dropped += end - first - num_placed
            self.num_replayed += num_placed - len(indexes)
            self.num_written += len(indexes)
            if len(indexes):
                self._journal.append((arena, indexes))
                self._pending.put(arena, values, indexes, places)

    def _forget_from(self, found: _OpenBlocks, position: int) -> None:
        block_size = self._block_size
        for number in found.numbers:
            num_rows = min((number + 1) * block_size - position, block_size)
            if num_rows > 0:
                behind = (found.chain.block_ids[number] + 1) * block_size
                for arena in self._arenas.values():
                    self._pending.forget(arena, np.arange(behind - num_rows, behind))

    def _merge(self, source: int, target: int) -> None:
        """Copy rows that a sealed block lacks from its open duplicate, which is dropped."""
        for arena in self._arenas.values():
            sources, targets = arena.copy_lacking(source, target)
            self._pending.move(arena, sources, targets)
            self._pending.drop_blocks(arena, [source])
            if len(targets):
                self._journal.append((arena, targets))


def _columns(chunks: Sequence[RowChunk]) -> Sequence[Sequence[Any]]:
    return tuple(zip(*chunks, strict=True)) if chunks else ((),) * len(RowChunk._fields)
