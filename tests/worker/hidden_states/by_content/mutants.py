"""The store with one rule removed, for each rule: the comparison with the plain model must find what goes wrong.

Those of `ON_THE_WAY` need journeys in which
copies take their time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from mmcached.worker.hidden_states import Refusal, Report, RowChunk, RowSpan, RowsRead, TensorPrefixStore, pending_rows
from mmcached.worker.hidden_states.buffer_pool import BufferPool
from mmcached.worker.hidden_states.by_content import block_pool, step_writer
from mmcached.worker.hidden_states.by_content.block_pool import BlockPool
from mmcached.worker.hidden_states.by_content.packed_rows import PackedRows
from mmcached.worker.hidden_states.by_content.request_blocks import ABSENT, Chain, RequestBlocks
from mmcached.worker.hidden_states.by_content.step_writer import StepWriter
from mmcached.worker.hidden_states.pending_rows import PendingRows
from mmcached.worker.hidden_states.row_arena import RowArena
from mmcached.worker.hidden_states.row_sources import RowSources
from tests.removals import mutants
from tests.worker.hidden_states.by_content.delayed_transfer import DelayedTransfer

Patch = pytest.MonkeyPatch
Outputs = Mapping[str, Any]


# ---- the store


def writes_one_step_late(patch: Patch) -> None:
    pending: dict[TensorPrefixStore, tuple[list[RowChunk], dict[str, Any]]] = {}
    real = TensorPrefixStore.write

    def write(store: TensorPrefixStore, chunks: Sequence[RowChunk], outputs: Outputs) -> list[Refusal]:
        late = pending.get(store)
        pending[store] = list(chunks), {key: rows.clone() for key, rows in outputs.items()}
        return real(store, *late) if late else []

    patch.setattr(TensorPrefixStore, "write", write)


def writes_aliases(patch: Patch) -> None:
    """Keeps what it was handed, not a copy, until the step ends or somebody reads."""
    pending: dict[TensorPrefixStore, tuple[list[RowChunk], dict[str, Any]]] = {}
    write, read, commit = TensorPrefixStore.write, TensorPrefixStore.read, TensorPrefixStore.commit

    def flush(store: TensorPrefixStore) -> None:
        late = pending.pop(store, None)
        if late:
            write(store, *late)

    def write_later(store: TensorPrefixStore, chunks: Sequence[RowChunk], outputs: Outputs) -> list[Refusal]:
        flush(store)
        pending[store] = list(chunks), dict(outputs.items())
        return []

    def read_now(store: TensorPrefixStore, spans: Sequence[RowSpan], keys: Collection[str]) -> RowsRead:
        flush(store)
        return read(store, spans, keys)

    def commit_now(store: TensorPrefixStore) -> Report:
        flush(store)
        return commit(store)

    patch.setattr(TensorPrefixStore, "write", write_later)
    patch.setattr(TensorPrefixStore, "read", read_now)
    patch.setattr(TensorPrefixStore, "commit", commit_now)


def lends_a_buffer_twice(patch: Patch) -> None:
    one = np.empty(1 << 20, dtype=np.uint8)
    patch.setattr(BufferPool, "take", lambda pool, nbytes: one)


def rounds_a_hit_down(patch: Patch) -> None:
    real = TensorPrefixStore.usable_prefix

    def usable_prefix(store: TensorPrefixStore, hashes: Sequence[bytes], num_rows: int, keys: Collection[str]) -> int:
        return real(store, hashes, num_rows, keys) // store.block_size * store.block_size

    patch.setattr(TensorPrefixStore, "usable_prefix", usable_prefix)


def reads_whole_blocks_only(patch: Patch) -> None:
    real = TensorPrefixStore.read

    def read(store: TensorPrefixStore, spans: Sequence[RowSpan], keys: Collection[str]) -> RowsRead:
        size = store.block_size
        return real(store, [RowSpan(at, first, max(end // size * size, first + 1)) for at, first, end in spans], keys)

    patch.setattr(TensorPrefixStore, "read", read)


def derives_positions_from_a_counter(patch: Patch) -> None:
    """Takes a request's next rows for those behind the ones that came before, whatever the chunk says."""
    counted: dict[tuple[TensorPrefixStore, int], int] = {}
    real = TensorPrefixStore.write

    def write(store: TensorPrefixStore, chunks: Sequence[RowChunk], outputs: Outputs) -> list[Refusal]:
        moved = []
        for chunk in chunks:
            start = counted.get((store, chunk.request_id), 0)
            counted[store, chunk.request_id] = start + chunk.num_rows
            moved.append(chunk._replace(start=start))
        return real(store, moved, outputs)

    patch.setattr(TensorPrefixStore, "write", write)


def publishes_what_is_withdrawn(patch: Patch) -> None:
    patch.setattr(TensorPrefixStore, "withdraw", lambda store: store.commit())


# ---- blocks


def keeps_marks_of_former_tenants(patch: Patch) -> None:
    patch.setattr(PendingRows, "forget_blocks", lambda pending, arena, block_ids: None)


def gives_up_heads_first(patch: Patch) -> None:
    real = RequestBlocks.release

    def release(requests: RequestBlocks, request_id: int) -> None:
        if request_id in requests.of_request:
            requests.of_request[request_id].block_ids.reverse()
        real(requests, request_id)

    patch.setattr(RequestBlocks, "release", release)


def evicts_the_youngest(patch: Patch) -> None:
    class YoungestFirst(OrderedDict[int, None]):
        def popitem(self, last: bool = True) -> tuple[int, None]:
            return super().popitem(last=True)

    patch.setattr(block_pool, "OrderedDict", YoungestFirst)


def evicts_what_is_held(patch: Patch) -> None:
    class Kept(OrderedDict[int, None]):
        def __delitem__(self, block_id: int) -> None:
            pass

    patch.setattr(block_pool, "OrderedDict", Kept)


def takes_one_block_too_many(patch: Patch) -> None:
    real = BlockPool.take

    def take(pool: BlockPool) -> int | None:
        pool.capacity += 1
        try:
            return real(pool)
        finally:
            pool.capacity -= 1

    patch.setattr(BlockPool, "take", take)


def reports_no_losses(patch: Patch) -> None:
    real = BlockPool.evict

    def evict(pool: BlockPool) -> bool:
        before = dict(pool.changed)
        done = real(pool)
        pool.changed.clear()
        pool.changed.update(before)
        return done

    patch.setattr(BlockPool, "evict", evict)


def seals_before_writing(patch: Patch) -> None:
    """Seals an open block at once, so that the guess which stands there counts as its row."""
    announce = BlockPool.announce

    def seal(pool: BlockPool, block_id: int, block_hash: bytes) -> None:
        announce(pool, block_id, block_hash)
        pool.is_sealed[block_id] = True

    patch.setattr(BlockPool, "announce", seal)


def finds_hashes_at_the_steps_end(patch: Patch) -> None:
    announce = BlockPool.announce

    def seal(pool: BlockPool, block_id: int, block_hash: bytes) -> None:
        announce(pool, block_id, block_hash)
        pool.is_sealed[block_id] = True

    patch.setattr(BlockPool, "announce", lambda pool, block_id, block_hash: None)
    patch.setattr(BlockPool, "seal", seal)


def keeps_what_has_no_head(patch: Patch) -> None:
    pools: dict[RequestBlocks, BlockPool] = {}
    init, real = RequestBlocks.__init__, RequestBlocks.place

    def note_pool(requests: RequestBlocks, pool: BlockPool) -> None:
        init(requests, pool)
        pools[requests] = pool

    def place(requests: RequestBlocks, chain: Chain, first: int, end: int) -> list[int]:
        new = real(requests, chain, first, end)
        for number in range(first, end):
            if chain.block_ids[number] == ABSENT and (block_id := pools[requests].take()) is not None:
                chain.block_ids[number] = block_id
                new.append(block_id)
        return new

    patch.setattr(RequestBlocks, "__init__", note_pool)
    patch.setattr(RequestBlocks, "place", place)


# ---- a step


def takes_chunks_as_they_are_packed(patch: Patch) -> None:
    patch.setattr(step_writer, "sorted", lambda numbers, key: list(numbers), raising=False)


def makes_room_before_it_holds(patch: Patch) -> None:
    """Attaches and places one chunk after the other."""
    real = StepWriter.write

    def write(writer: StepWriter, chunks: Sequence[RowChunk], outputs: Outputs) -> list[Refusal]:
        for chunk in chunks:
            real(writer, [chunk], {})
        return real(writer, chunks, outputs)

    patch.setattr(StepWriter, "write", write)


def overwrites_what_is_sealed(patch: Patch) -> None:
    real = PackedRows.to_write

    class NothingWritten:
        def are_written(self, indexes: np.ndarray) -> np.ndarray:
            return np.zeros(len(indexes), dtype=np.bool_)

    def to_write(rows: PackedRows, arena: RowArena, first: int, end: int) -> Any:
        nothing: Any = NothingWritten()
        return real(rows, nothing, first, end)

    patch.setattr(PackedRows, "to_write", to_write)


def seals_what_was_guessed(patch: Patch) -> None:
    patch.setattr(StepWriter, "_forget_from", lambda writer, found, position: None)


def keeps_guesses_of_absent_keys(patch: Patch) -> None:
    patch.setattr(PackedRows, "in_open_blocks", np.empty(0, dtype=np.int64))


def drops_a_copy_with_its_rows(patch: Patch) -> None:
    nothing = np.empty(0, dtype=np.int64)
    patch.setattr(RowArena, "copy_lacking", lambda arena, source, target: (nothing, nothing))


def fills_with_zeros(patch: Patch) -> None:
    patch.setattr(RowArena, "are_written", lambda arena, indexes: np.ones(len(indexes), dtype=np.bool_))


# ---- on the way


def sends_aliases(patch: Patch) -> None:
    """Looks at the rows when the copy is done."""
    patch.setattr(DelayedTransfer, "clone", lambda transfer, rows: rows)


def reads_what_is_not_there_yet(patch: Patch) -> None:
    patch.setattr(PendingRows, "settle", lambda pending, arenas, indexes: None)


def waits_for_nothing(patch: Patch) -> None:
    patch.setattr(pending_rows, "_wait_for", lambda copy: True)


def lands_what_has_another_tenant(patch: Patch) -> None:
    """Brings each row where it belonged when it was sent."""

    def all_of(sources: Any, number: int, indexes: Sequence[np.ndarray]) -> np.ndarray:
        return np.unique(np.concatenate(indexes)) if indexes else np.empty(0, dtype=np.int64)

    patch.setattr(RowSources, "of", all_of)


def keeps_sources_of_former_tenants(patch: Patch) -> None:
    def forget_blocks(pending: PendingRows, arena: RowArena, block_ids: Sequence[int]) -> None:
        arena.written[block_ids] = False

    patch.setattr(PendingRows, "forget_blocks", forget_blocks)


def lets_withdrawn_rows_come(patch: Patch) -> None:
    patch.setattr(PendingRows, "forget", lambda pending, arena, indexes: arena.forget(indexes))


def has_no_limit(patch: Patch) -> None:
    patch.setattr(PendingRows, "_stay_below_limit", lambda pending, nbytes: None)


def merges_what_is_not_there_yet(patch: Patch) -> None:
    patch.setattr(PendingRows, "move", lambda pending, arena, sources, targets: None)


def loses_its_way_when_rows_move(patch: Patch) -> None:
    """Misses by one row where what is sent does not begin with the step's first row."""

    class Fixed(np.ndarray):
        def __isub__(self, number: Any) -> Fixed:  # type: ignore[misc, override]
            missed: Fixed = np.maximum(np.subtract(self, number + (number > 0)), 0).view(Fixed)
            return missed

    init = RowSources.__init__

    def begin(sources: Any, arena: RowArena) -> None:
        init(sources, arena)
        sources.place = sources.place.view(Fixed)

    patch.setattr(RowSources, "__init__", begin)


MUTANTS = mutants(
    writes_one_step_late,
    writes_aliases,
    lends_a_buffer_twice,
    rounds_a_hit_down,
    reads_whole_blocks_only,
    derives_positions_from_a_counter,
    publishes_what_is_withdrawn,
    keeps_marks_of_former_tenants,
    gives_up_heads_first,
    evicts_the_youngest,
    evicts_what_is_held,
    takes_one_block_too_many,
    reports_no_losses,
    seals_before_writing,
    finds_hashes_at_the_steps_end,
    keeps_what_has_no_head,
    takes_chunks_as_they_are_packed,
    makes_room_before_it_holds,
    overwrites_what_is_sealed,
    seals_what_was_guessed,
    keeps_guesses_of_absent_keys,
    drops_a_copy_with_its_rows,
    fills_with_zeros,
)
ON_THE_WAY = mutants(
    sends_aliases,
    reads_what_is_not_there_yet,
    waits_for_nothing,
    lands_what_has_another_tenant,
    keeps_sources_of_former_tenants,
    lets_withdrawn_rows_come,
    has_no_limit,
    merges_what_is_not_there_yet,
    loses_its_way_when_rows_move,
)
