"""Store of rows by content: rows of running requests, and of all prefixes that fit.

    release ──> write ──> read ──> commit            one step; written rows can be read at once
                  └──── withdraw ────┘               the step failed: its writes are undone

Every write names request, absolute positions and the hashes of their blocks; nothing is derived from counters. Only a
read waits for a device, for the rows that it needs (`pending_rows`). A value that does not fit its key, or a key that
was not declared, is refused separately, and its rows are missing; so are rows without space.

Invariants: a row that is read was written for its position and this content · blocks never take more than `byte_budget`
· writes copy, and rows that were read do not change until they are released.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NoReturn

import numpy as np

from mmcached.wire.errors import InvalidRequest, LocalProtocolError
from mmcached.worker.hidden_states.buffer_pool import BufferPool
from mmcached.worker.hidden_states.by_content.block_pool import RowBlockPool
from mmcached.worker.hidden_states.by_content.layout import Runs, as_array
from mmcached.worker.hidden_states.by_content.records import RefusedRows, Report, RowChunk, RowSpan, RowStoreStats
from mmcached.worker.hidden_states.by_content.request_blocks import ABSENT, RequestChains
from mmcached.worker.hidden_states.by_content.rows_read import RowsRead
from mmcached.worker.hidden_states.by_content.step_writer import StepWriter
from mmcached.worker.hidden_states.device_copy import TransferFor, transfer_for
from mmcached.worker.hidden_states.pending_rows import DEFAULT_BYTE_LIMIT, PendingRows
from mmcached.worker.hidden_states.row_arena import RowArena
from mmcached.worker.hidden_states.schema import KeySpec
from mmcached.worker.integers import as_integer, check_integers, check_size

DEFAULT_MAX_POSITIONS = 1 << 24


class TensorPrefixStore:
    """Store of rows by content.

    Args:
        block_size: positions per block, as for the KV cache's block hashes.
        schema: the initial keys; `declare` adds others.
        byte_budget: bytes of all blocks. Each is charged for every key, whether it has rows of it or not.
        max_positions: positions of one request; the size of its tables grows with its positions.
        buffer_nbytes: bytes of buffers kept for the next read; default: a quarter of `byte_budget`.
        staged_byte_limit: bytes of pending copies, and of pinned memory kept for the next copy. A single step may
            exceed it.
        transfer_for: returns the transfer for a device.

    Raises:
        ConfigError: a number or a key is invalid.
    """

    def __init__(
        self,
        block_size: int,
        schema: Iterable[KeySpec],
        *,
        byte_budget: int,
        max_positions: int = DEFAULT_MAX_POSITIONS,
        buffer_nbytes: int | None = None,
        staged_byte_limit: int = DEFAULT_BYTE_LIMIT,
        transfer_for: TransferFor = transfer_for,
    ) -> None:
        check_size("block_size", block_size, low=1, unit="position")
        check_size("max_positions", max_positions, low=1, unit="position")
        check_size("byte_budget", byte_budget, low=0, unit="bytes")
        check_size("buffer_nbytes", 0 if buffer_nbytes is None else buffer_nbytes, low=0, unit="bytes")
        check_size("staged_byte_limit", staged_byte_limit, low=0, unit="bytes")
        self.block_size = block_size
        self.byte_budget = byte_budget
        self.max_positions = max_positions
        self._arenas: dict[str, RowArena] = {}
        self._buffers = BufferPool(byte_budget // 4 if buffer_nbytes is None else buffer_nbytes, _host_bytes)
        self._pool = RowBlockPool(0)
        self._requests = RequestChains(self._pool)
        self._pending = PendingRows(
            byte_limit=staged_byte_limit,
            transfer_for=transfer_for,
            note_lost=lambda rows: self._pool.note_changed(np.unique(rows // block_size)),
        )
        self._writer = StepWriter(
            block_size,
            self._pool,
            self._requests,
            max_positions=max_positions,
            arenas=self._arenas,
            pending=self._pending,
        )
        self._num_read = self._num_missing = self._num_refusals = 0
        self.declare(*schema)

    @property
    def schema(self) -> Mapping[str, KeySpec]:
        return {key: arena.spec for key, arena in self._arenas.items()}

    # ---- keys

    def declare(self, *specs: KeySpec) -> None:
        """Add keys, between two steps; no effect for keys that are declared already in the same way.

        A key that is redeclared differently loses all its rows. A new key enlarges all blocks, so fewer fit: excess
        blocks are dropped, evictable blocks first, then the tails of running requests, the youngest first.

        Raises:
            LocalProtocolError: a step has neither been committed nor withdrawn.
            ConfigError: the memory cannot be mapped; nothing has changed.
        """
        schema = self.schema
        changed = [spec for spec in specs if schema.get(spec.name) != spec]
        if not changed:
            return
        if self._writer.is_open:
            raise LocalProtocolError("keys are declared between two steps: commit or withdraw first")
        schema = {**schema, **{spec.name: spec for spec in specs}}
        capacity = self.byte_budget // (self.block_size * sum(spec.row_nbytes for spec in schema.values()))
        is_empty = not self._pool.num_used
        kept = {} if is_empty else {key: each for key, each in self._arenas.items() if schema[key] == each.spec}
        num_blocks = capacity if is_empty else self._pool.num_blocks
        arenas = {
            key: kept.get(key) or RowArena(spec, block_size=self.block_size, num_blocks=num_blocks)
            for key, spec in schema.items()
        }
        if any(spec.name in self._arenas for spec in changed):
            self._pool.note_all_changed()
        for key, arena in self._arenas.items():
            if arenas[key] is not arena:
                self._pending.drop_arena(arena)
        self._arenas.update(arenas)
        if is_empty:
            self._pool.resize(capacity)
        else:
            self._shrink(capacity)

    # ---- a step

    def release(self, request_ids: Iterable[int]) -> None:
        """Release the blocks of requests that have ended or were set back; ignores unknown requests."""
        self._pending.poll()
        for request_id in request_ids:
            self._requests.release(request_id)

    def attach(self, request_id: int, block_hashes: Sequence[bytes]) -> None:
        """Hold the blocks that are sealed under a request's hashes, from block 0 on, until it is released.

        For requests that read a prefix without writing; `write` does it implicitly. Raises `InvalidRequest` if the
        request has blocks already.
        """
        if request_id in self._requests.of_request:
            raise InvalidRequest("request_id", request_id, "has blocks already; release it first")
        self._requests.add_hashes(self._requests.open(request_id), 0, block_hashes)

    def write(self, chunks: Sequence[RowChunk], outputs: Mapping[str, object]) -> list[RefusedRows]:
        """Store a step's outputs. Until `commit`, `withdraw` undoes it.

        In a sealed block an existing row is kept; in an open block the later row replaces it.

        Args:
            chunks: in the order of the packed rows, which may be any. Rows of draft tokens may be written too; the
                request continues at the first rejected token, before the blocks have hashes.
            outputs: by key, `(rows of the step, *shape)`; a declared key that is absent has no rows here.

        Raises:
            InvalidRequest: a position or a number of rows is not an integer; nothing was written.

        Returns:
            The invalid parts, which were not stored. Rows without space are counted as `dropped` in `stats()`.
        """
        self._pending.poll()
        refusals = self._writer.write(chunks, outputs)
        self._num_refusals += len(refusals)
        return refusals

    def commit(self) -> Report:
        """End a step and keep its writes. Return the changes since the last report.

        A report is a state, not a difference: applying it twice is harmless, and the last one is right.
        """
        self._pending.poll()
        self._writer.commit()
        if not self._pool.changed:
            return {}
        hashes = list(self._pool.changed)
        self._pool.changed.clear()
        report: Report = {block_hash: {} for block_hash in hashes}
        here = [(report[each], block_id) for each in hashes if (block_id := self._pool.find(each)) is not None]
        if here:
            block_ids = np.array([block_id for _, block_id in here])
            for key, arena in self._arenas.items():
                for (rows, _), num_rows in zip(here, arena.num_leading(block_ids).tolist(), strict=True):
                    if num_rows:
                        rows[key] = num_rows
        return report

    def withdraw(self) -> None:
        """End a step that failed and undo its writes. Evictions made for it are not undone."""
        self._writer.withdraw()

    def reset(self) -> None:
        """Drop all rows and requests, and return the memory. Keys stay declared, counters go on."""
        self._writer.withdraw()
        self._pending.clear()
        self._requests.clear()
        self._pool.clear()
        self._buffers.clear()
        for arena in self._arenas.values():
            arena.clear()

    # ---- reading

    def usable_prefix(self, block_hashes: Sequence[bytes], num_rows: int, keys: Collection[str]) -> int:
        """Return how many of the first `num_rows` rows of a sequence are sealed for all keys. Changes nothing.

        Raises `InvalidRequest` for an invalid `num_rows`.
        """
        if not 0 <= as_integer("num_rows", num_rows) <= self.max_positions:
            raise InvalidRequest("num_rows", num_rows, f"must be 0 … {self.max_positions}")
        block_ids: list[int] = []
        for block_hash in block_hashes[: -(-num_rows // self.block_size)]:
            block_id = self._pool.find(block_hash)
            if block_id is None:
                break
            block_ids.append(block_id)
        for key in keys:
            arena = self._arenas.get(key)
            num_leading = arena.num_leading(np.array(block_ids)).tolist() if arena is not None and block_ids else []
            num_full = next((index for index, num in enumerate(num_leading) if num < self.block_size), len(num_leading))
            rest = num_leading[num_full] if num_full < len(num_leading) else 0
            num_rows = min(num_rows, num_full * self.block_size + rest)
        return num_rows

    def read(self, spans: Sequence[RowSpan], keys: Collection[str]) -> RowsRead:
        """Gather rows of requests, each key in one operation. Missing rows affect only their own span.

        Raises `InvalidRequest` for an empty span, a span beyond `max_positions`, or an undeclared key.
        """
        request_ids, firsts, ends = zip(*spans, strict=True) if spans else ((), (), ())
        check_integers("spans", firsts, ends)
        if spans and (min(firsts) < 0 or max(ends) > self.max_positions):
            self._refuse(spans)
        starts, counts = as_array(firsts), as_array(ends)
        counts -= starts
        if spans and counts.min() < 1:
            self._refuse(spans)
        arenas = [self._arenas[key] for key in keys if key in self._arenas]
        if len(arenas) < len(keys):
            raise InvalidRequest("keys", sorted(set(keys) - self._arenas.keys()), "must be declared")
        runs = Runs(self.block_size, starts, counts, int(counts.sum()))
        indexes = runs.indexes(self._blocks_of(request_ids, runs))
        self._pending.poll()
        self._pending.settle(arenas, indexes)
        rows = RowsRead(arenas, runs, indexes, firsts, self._buffers)
        self._num_missing += rows.num_missing
        self._num_read += runs.num_rows * len(arenas) - rows.num_missing
        return rows

    # ---- inspection

    def stats(self) -> RowStoreStats:
        return RowStoreStats(
            written=self._writer.num_written,
            replayed=self._writer.num_replayed,
            dropped=self._writer.num_dropped,
            read=self._num_read,
            missing=self._num_missing,
            evictions=self._pool.num_evictions,
            refusals=self._num_refusals,
            copies=self._pending.num_copies,
            read_waits=self._pending.num_read_waits,
            limit_waits=self._pending.num_limit_waits,
            requests=len(self._requests.of_request),
            blocks=self._pool.num_used,
            capacity_blocks=self._pool.capacity,
            sealed_blocks=self._pool.num_sealed,
            evictable_blocks=self._pool.num_evictable,
            block_nbytes=sum(arena.block_nbytes for arena in self._arenas.values()),
            pooled_nbytes=self._buffers.kept_nbytes,
            in_flight_nbytes=self._pending.in_flight_nbytes,
            pinned_nbytes=self._pending.pinned_nbytes,
        )

    # ---- internals

    def _refuse(self, spans: Sequence[RowSpan]) -> NoReturn:
        wrong = next(span for span in spans if not 0 <= span.first < span.end <= self.max_positions)
        limit = f"request {wrong.request_id}: must be 0 <= first < end <= {self.max_positions}"
        raise InvalidRequest("spans", f"[{wrong.first}, {wrong.end})", limit)

    def _blocks_of(self, request_ids: Sequence[int], runs: Runs) -> np.ndarray:
        if runs.are_single_rows:
            return as_array(self._requests.at(request_ids, runs.first_blocks.tolist()))
        found: list[int] = []
        blocks = zip(request_ids, runs.first_blocks.tolist(), runs.num_blocks.tolist(), strict=True)
        for request_id, first, num_blocks in blocks:
            chain = self._requests.of_request.get(request_id)
            part = chain.block_ids[first : first + num_blocks] if chain is not None else []
            found += part
            found += [ABSENT] * (num_blocks - len(part))
        return as_array(found)

    def _shrink(self, capacity: int) -> None:
        """Reduce the number of blocks to `capacity`, and free the memory of unused blocks."""
        pool = self._pool
        while pool.num_used > capacity and (pool.evict() or self._requests.cut()):
            pass
        pool.capacity = min(capacity, pool.num_blocks)
        for arena in self._arenas.values():
            self._pending.drop_blocks(arena, pool.free)  # late copies would take memory again
            arena.give_back(pool.free)


def _host_bytes(nbytes: int) -> np.ndarray:
    return np.empty(nbytes, dtype=np.uint8)
