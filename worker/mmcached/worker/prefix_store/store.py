"""The tensor prefix store: rows of running requests and of all prefixes that there is room for, by content.

    release ──> write ──> read ──> commit            one step; what it wrote can be read at once
                  └──── withdraw ────┘               the step failed: nothing of it was written

Every write names request, absolute positions and the blocks that lie there; nothing is derived from counters. Blocks,
names and who holds them: package docstring. Rows of a device are copied behind the step's back (`staging`): nothing
here waits for a device but a read, for the rows that it asks for, and what is under way is found like all the rest.

A model's outputs are not trusted to be right: a value that does not fit its key, or a key that nobody has declared, is
refused by itself, and its rows are missing. So are rows for which there is no room. No request is disturbed by what
another one brings.

Knows nothing of engines, tokens or devices beyond where a tensor lies. Invariants: a row that is read was written for
its position and for this content · blocks never take more than `byte_budget` · what is written is copied, what is read
is not touched again until it is released.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NoReturn

import numpy as np

from mmcached.wire.errors import InvalidRequest, LocalProtocolError
from mmcached.worker.integers import as_integer, check_integers, check_size
from mmcached.worker.prefix_store.arena import RowArena
from mmcached.worker.prefix_store.buffers import BufferPool, host_bytes
from mmcached.worker.prefix_store.chains import ABSENT, ChainBook
from mmcached.worker.prefix_store.gather import gather
from mmcached.worker.prefix_store.layout import Runs, as_array
from mmcached.worker.prefix_store.records import Refusal, Report, RowChunk, RowSpan, StoreStats
from mmcached.worker.prefix_store.rows_read import RowsRead
from mmcached.worker.prefix_store.schema import KeySpec
from mmcached.worker.prefix_store.slots import SlotBook
from mmcached.worker.prefix_store.staging import Staging
from mmcached.worker.prefix_store.step_writer import StepWriter
from mmcached.worker.prefix_store.transfer import TransferFor, transfer_for
from mmcached.worker.prefix_store.values import ValueBook

DEFAULT_MAX_POSITIONS = 1 << 24
DEFAULT_VALUE_BUDGET = 16 << 20
DEFAULT_STAGED_LIMIT = 256 << 20
DEFAULT_DEVICE_BUDGET = 64 << 20


class TensorPrefixStore:
    """Rows by content.

    Args:
        block_size: positions per block, as of the KV cache's digests.
        schema: the keys that are known from the start; `declare` adds others.
        byte_budget: of all blocks. Each is charged for every "per_token" key, whether it has rows of it or not.
        max_positions: of one request; what lies behind them is refused, because books of a request grow with them.
        value_byte_budget: of values that are kept whole.
        buffer_nbytes: of buffers that wait for the next read; default: a quarter of `byte_budget`.
        staged_byte_limit: of copies under way, and of pinned memory that waits for the next one; only beyond it a write
            waits, for the oldest copy. One step may be larger.
        device_byte_budget: of rows of "deferred" keys that are kept on their device.
        transfer_for: makes what copies the rows of a device.

    Raises:
        ConfigError: a number or a key that cannot be.
    """

    def __init__(
        self,
        block_size: int,
        schema: Iterable[KeySpec],
        *,
        byte_budget: int,
        max_positions: int = DEFAULT_MAX_POSITIONS,
        value_byte_budget: int = DEFAULT_VALUE_BUDGET,
        buffer_nbytes: int | None = None,
        staged_byte_limit: int = DEFAULT_STAGED_LIMIT,
        device_byte_budget: int = DEFAULT_DEVICE_BUDGET,
        transfer_for: TransferFor = transfer_for,
    ) -> None:
        check_size("block_size", block_size, low=1, unit="position")
        check_size("max_positions", max_positions, low=1, unit="position")
        sizes = {
            "byte_budget": byte_budget,
            "value_byte_budget": value_byte_budget,
            "buffer_nbytes": 0 if buffer_nbytes is None else buffer_nbytes,
            "staged_byte_limit": staged_byte_limit,
            "device_byte_budget": device_byte_budget,
        }
        for field, nbytes in sizes.items():
            check_size(field, nbytes, low=0, unit="bytes")
        self.block_size = block_size
        self.byte_budget = byte_budget
        self.max_positions = max_positions
        self._specs: dict[str, KeySpec] = {}
        self._arenas: dict[str, RowArena] = {}
        self._values = ValueBook(value_byte_budget)
        self._buffers = BufferPool(byte_budget // 4 if buffer_nbytes is None else buffer_nbytes, host_bytes)
        self._slots = SlotBook(0)
        self._chains = ChainBook(self._slots)
        self._staging = Staging(
            block_size,
            byte_limit=staged_byte_limit,
            device_byte_budget=device_byte_budget,
            transfer_for=transfer_for,
            note_lost=lambda rows: self._slots.note_changed(np.unique(rows // block_size)),
        )
        self._writer = StepWriter(
            block_size,
            self._slots,
            self._chains,
            max_positions=max_positions,
            arenas=self._arenas,
            staging=self._staging,
            values=self._values,
        )
        self._num_read = self._num_missing = self._num_refusals = 0
        self.declare(*schema)

    @property
    def schema(self) -> Mapping[str, KeySpec]:
        return dict(self._specs)

    # ---- keys

    def declare(self, *specs: KeySpec) -> None:
        """Make keys known, between two steps. If they are known just so, nothing changes.

        Of a new key, blocks that are here have no rows. A key that is declared otherwise than before loses all it had,
        unless only the time of its copies is another.
        Blocks grow by a new key, so fewer fit: what is too much is given up, the evictable first, then the ends of
        running requests, of those that came last.

        Raises:
            LocalProtocolError: a step has neither been committed nor withdrawn.
            ConfigError: so much memory cannot even be mapped; nothing has changed.
        """
        changed = [spec for spec in specs if not spec.has_rows_of(self._specs.get(spec.name))]
        specs_after = self._specs | {spec.name: spec for spec in specs}
        if not changed:
            self._specs = specs_after
            return
        if self._writer.is_open:
            raise LocalProtocolError("keys are declared between two steps: commit or withdraw first")
        row_specs = [spec for spec in specs_after.values() if spec.kind == "per_token"]
        block_nbytes = self.block_size * sum(spec.nbytes for spec in row_specs)
        capacity = self.byte_budget // block_nbytes if block_nbytes else 0
        is_empty = not self._slots.num_used
        kept = {} if is_empty else {key: each for key, each in self._arenas.items() if specs_after[key] not in changed}
        num_slots = capacity if is_empty else self._slots.num_slots
        arenas = {
            spec.name: kept.get(spec.name) or RowArena(spec, block_size=self.block_size, num_slots=num_slots)
            for spec in row_specs
        }
        if any(spec.name in self._arenas for spec in changed):
            self._slots.changed.update(dict.fromkeys(self._slots.all_names))
        self._specs = specs_after
        for spec in changed:
            self._values.forget_key(spec.name)
        for key, arena in self._arenas.items():
            if arenas.get(key) is not arena:
                self._staging.drop_arena(arena)
        self._arenas.clear()
        self._arenas.update(arenas)
        if is_empty:
            self._slots.resize(capacity)
        else:
            self._shrink(capacity)

    # ---- a step

    def release(self, request_ids: Iterable[int]) -> None:
        """Requests have ended or were set back: what they hold may be given up. Unknown ones change nothing."""
        self._staging.shipments.poll()
        slots: list[int] = []
        for request_id in request_ids:
            if self._staging.has_to_launch and request_id in self._chains.of_request:
                slots += self._chains.of_request[request_id].slots
            self._chains.release(request_id)
            self._values.release(request_id)
        if slots:
            self._flush(as_array(slots))

    def attach(self, request_id: int, names: Sequence[bytes]) -> None:
        """Hold the blocks that are sealed under a request's names, from block 0 on, until it is released.

        For who reads a prefix and writes nothing, or not yet; `write` does it by itself.

        Raises:
            InvalidRequest: the request has blocks already.
        """
        if request_id in self._chains.of_request:
            raise InvalidRequest("request_id", request_id, "has blocks already; release it first")
        self._chains.add_names(self._chains.open(request_id), 0, names)

    def write(self, chunks: Sequence[RowChunk], outputs: Mapping[str, object]) -> list[Refusal]:
        """Keep a step's outputs. Until `commit` it can be undone by `withdraw`.

        A row that is there already stays as it is if its block is sealed; in an open block the later row is right.

        Args:
            chunks: in the order of the packed rows, which may be any: who stands behind a block that another chunk
                fills finds it. What is sealed of their prefixes is held before room is made for any. Rows of tokens
                that may come otherwise can be written too; the request goes on at the first that did, before the
                blocks are named.
            outputs: by key, as its kind says; a declared key that is absent has no rows here.

        Raises:
            InvalidRequest: a position or a number of rows that is no integer; nothing was written.

        Returns:
            What was not kept because it does not fit. What was not kept for want of room is `dropped` in `stats()`.
        """
        self._staging.shipments.poll()
        refusals = self._writer.write(chunks, outputs, self._specs)
        self._num_refusals += len(refusals)
        return refusals

    def commit(self) -> Report:
        """End a step: what was written stays. Return what has changed since the last report.

        A report tells the state and not the way there: to hear it twice does no harm, and the last one is right.
        """
        self._staging.shipments.poll()
        self._writer.commit()
        if not self._slots.changed:
            return {}
        names = list(self._slots.changed)
        self._slots.changed.clear()
        report: Report = {name: {} for name in names}
        here = [(report[name], slot) for name in names if (slot := self._slots.find(name)) is not None]
        if here:
            slots = np.array([slot for _, slot in here])
            for key, arena in self._arenas.items():
                for (rows, _), num_rows in zip(here, arena.num_leading(slots).tolist(), strict=True):
                    if num_rows:
                        rows[key] = num_rows
        return report

    def withdraw(self) -> None:
        """End a step that failed: no row of it was written. What was evicted for it is gone."""
        self._writer.withdraw()

    def reset(self) -> None:
        """Forget all rows, values and requests, and give the memory back. Keys stay known, counters go on."""
        self._writer.withdraw()
        self._staging.clear()
        self._chains.clear()
        self._slots.clear()
        self._values.clear()
        self._buffers.clear()
        for arena in self._arenas.values():
            arena.clear()

    # ---- reading

    def usable_prefix(self, names: Sequence[bytes], num_rows: int, keys: Collection[str]) -> int:
        """Return how many of the first `num_rows` rows of a sequence are sealed for all keys. Changes nothing.

        Raises:
            InvalidRequest: a number of rows that cannot be.
        """
        if not 0 <= as_integer("num_rows", num_rows) <= self.max_positions:
            raise InvalidRequest("num_rows", num_rows, f"must be 0 … {self.max_positions}")
        slots: list[int] = []
        for name in names[: -(-num_rows // self.block_size)]:
            slot = self._slots.find(name)
            if slot is None:
                break
            slots.append(slot)
        for key in keys:
            arena = self._arenas.get(key)
            num_leading = arena.num_leading(np.array(slots)).tolist() if arena is not None and slots else []
            num_full = next((index for index, num in enumerate(num_leading) if num < self.block_size), len(num_leading))
            rest = num_leading[num_full] if num_full < len(num_leading) else 0
            num_rows = min(num_rows, num_full * self.block_size + rest)
        return num_rows

    def read(self, spans: Sequence[RowSpan], keys: Collection[str]) -> RowsRead:
        """Gather rows of requests, each key's in one go. Spans that lack rows do not disturb the others.

        Raises:
            InvalidRequest: an empty span, one behind `max_positions`, or a key that has no rows.
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
            raise InvalidRequest("keys", sorted(set(keys) - self._arenas.keys()), "must be declared as per_token")
        runs = Runs(self.block_size, starts, counts, int(counts.sum()))
        slots = self._slots_of(request_ids, runs)
        indexes = runs.indexes(slots)
        self._staging.shipments.poll()
        self._staging.settle(arenas, indexes)
        rows = gather(arenas, runs, slots=slots, indexes=indexes, firsts=firsts, buffers=self._buffers)
        self._num_missing += rows.num_missing
        self._num_read += runs.num_rows * len(arenas) - rows.num_missing
        return rows

    def value(self, key: str, request_id: int | None = None) -> object:
        """Return a copy of the last value of a key that is kept whole; of a "global" one for all requests.

        Raises:
            MissingRows: there is none.
        """
        spec = self._specs.get(key)
        return self._values.get(key, None if spec is not None and spec.kind == "global" else request_id)

    # ---- looking in

    def stats(self) -> StoreStats:
        return StoreStats(
            written=self._writer.num_written,
            replayed=self._writer.num_replayed,
            dropped=self._writer.num_dropped,
            read=self._num_read,
            missing=self._num_missing,
            evictions=self._slots.num_evictions,
            refusals=self._num_refusals,
            copies=self._staging.shipments.num_copies,
            read_waits=self._staging.num_read_waits,
            limit_waits=self._staging.shipments.num_limit_waits,
            requests=len(self._chains.of_request),
            blocks=self._slots.num_used,
            capacity_blocks=self._slots.capacity,
            sealed_blocks=self._slots.num_named,
            evictable_blocks=self._slots.num_evictable,
            block_nbytes=sum(arena.block_nbytes for arena in self._arenas.values()),
            value_nbytes=self._values.nbytes,
            pooled_nbytes=self._buffers.kept_nbytes,
            deferred_nbytes=self._staging.kept_nbytes,
            in_flight_nbytes=self._staging.shipments.in_flight_nbytes,
            pinned_nbytes=self._staging.shipments.pinned_nbytes,
        )

    def check_integrity(self) -> None:
        """Raise `InvariantError` if blocks, names and holders contradict each other, or a budget is exceeded."""
        self._chains.check_integrity()
        self._staging.check_integrity()
        self._values.check_integrity()

    # ---- inside

    def _refuse(self, spans: Sequence[RowSpan]) -> NoReturn:
        """Raise, naming the first span that cannot be."""
        wrong = next(span for span in spans if not 0 <= span.first < span.end <= self.max_positions)
        limit = f"request {wrong.request_id}: must be 0 <= first < end <= {self.max_positions}"
        raise InvalidRequest("spans", f"[{wrong.first}, {wrong.end})", limit)

    def _slots_of(self, request_ids: Sequence[int], runs: Runs) -> np.ndarray:
        """Return the slots of all blocks of all runs, `ABSENT` where a request holds none."""
        if runs.are_single_rows:
            return as_array(self._chains.slots_of(request_ids, runs.first_blocks.tolist()))
        of_request = self._chains.of_request
        nothing: list[int] = []
        found: list[int] = []
        blocks = zip(request_ids, runs.first_blocks.tolist(), runs.num_blocks.tolist(), strict=True)
        for request_id, first, num_blocks in blocks:
            chain = of_request.get(request_id)
            slots = chain.slots if chain is not None else nothing
            part = slots[first : first + num_blocks]
            found += part
            found += [ABSENT] * (num_blocks - len(part))
        return as_array(found)

    def _flush(self, slots: np.ndarray) -> None:
        """Slots have been let go: have the rows of those that are sealed copied, and drop those of the others."""
        slots = slots[slots >= 0]
        is_named = self._slots.is_named[slots]
        self._staging.flush(slots[is_named])
        self._staging.drop_slots(slots[~is_named])

    def _shrink(self, capacity: int) -> None:
        """Have no more blocks than this, and no memory for those that are free."""
        slots = self._slots
        while slots.num_used > capacity and (slots.evict() or self._chains.cut()):
            pass
        slots.capacity = min(capacity, slots.num_slots)
        self._staging.drop_slots(slots.free)  # what comes late would take memory again
        for arena in self._arenas.values():
            arena.give_back(slots.free)
