"""The store with one rule removed, for each rule: the comparison with the plain model must find what goes wrong.

Each mutant is a store in which one method of one of its parts has been replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from mmcached.worker.prefix_store import (
    KeySpec,
    Refusal,
    Report,
    RowChunk,
    RowSpan,
    RowsRead,
    TensorPrefixStore,
    step_writer,
)
from mmcached.worker.prefix_store.arena import RowArena
from mmcached.worker.prefix_store.buffers import BufferPool
from mmcached.worker.prefix_store.chains import ABSENT, Chain, ChainBook
from mmcached.worker.prefix_store.placed_rows import PlacedRows
from mmcached.worker.prefix_store.slots import SlotBook
from mmcached.worker.prefix_store.step_writer import StepWriter
from tests.worker.prefix_store.journeys import MakeStore

Break = Callable[[TensorPrefixStore], None]


class WritesLate(TensorPrefixStore):
    """Writes a step's rows when the next one comes."""

    pending: tuple[list[RowChunk], dict[str, object]] | None = None

    def write(self, chunks: Sequence[RowChunk], outputs: Mapping[str, object]) -> list[Refusal]:
        late, self.pending = self.pending, (list(chunks), {key: _cloned(value) for key, value in outputs.items()})
        return super().write(*late) if late else []


class WritesAliases(TensorPrefixStore):
    """Keeps what it was handed, not a copy, until the step ends."""

    pending: tuple[list[RowChunk], dict[str, object]] | None = None

    def write(self, chunks: Sequence[RowChunk], outputs: Mapping[str, object]) -> list[Refusal]:
        self.flush()
        self.pending = (list(chunks), dict(outputs))
        return []

    def read(self, spans: Sequence[RowSpan], keys: Collection[str]) -> RowsRead:
        self.flush()
        return super().read(spans, keys)

    def commit(self) -> Report:
        self.flush()
        return super().commit()

    def flush(self) -> None:
        late, self.pending = self.pending, None
        if late:
            super().write(*late)


class RoundsDown(TensorPrefixStore):
    def usable_prefix(self, names: Sequence[bytes], num_rows: int, keys: Collection[str]) -> int:
        usable = super().usable_prefix(names, num_rows, keys)
        return usable // self.block_size * self.block_size


class ReadsWholeBlocks(TensorPrefixStore):
    def read(self, spans: Sequence[RowSpan], keys: Collection[str]) -> RowsRead:
        size = self.block_size
        return super().read([RowSpan(at, first, max(end // size * size, first + 1)) for at, first, end in spans], keys)


class CountsPositions(TensorPrefixStore):
    """Takes a request's next rows for those behind the ones that came before, whatever the chunk says."""

    def __init__(self, block_size: int, schema: Sequence[KeySpec], **options: Any) -> None:
        self.counted: dict[int, int] = {}
        super().__init__(block_size, schema, **options)

    def write(self, chunks: Sequence[RowChunk], outputs: Mapping[str, object]) -> list[Refusal]:
        moved = []
        for chunk in chunks:
            start = self.counted.get(chunk.request_id, 0)
            self.counted[chunk.request_id] = start + chunk.num_rows
            moved.append(chunk._replace(start=start))
        return super().write(moved, outputs)


class ReportsBeforeCommit(TensorPrefixStore):
    def withdraw(self) -> None:
        self.commit()


class TakesChunksAsTheyArePacked(TensorPrefixStore):
    def write(self, chunks: Sequence[RowChunk], outputs: Mapping[str, object]) -> list[Refusal]:
        with patch.object(step_writer, "sorted", lambda numbers, key: list(numbers), create=True):
            return super().write(chunks, outputs)


def _cloned(value: object) -> object:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _fills_with_zeros(store: TensorPrefixStore) -> None:
    for arena in store._arenas.values():
        _replace(arena, "are_written", lambda indexes: np.ones(len(indexes), dtype=np.bool_))


def _lends_buffers_twice(store: TensorPrefixStore) -> None:
    pool, one = store._buffers, np.empty(1 << 20, dtype=np.uint8)
    _replace(pool, "take", lambda nbytes: one)


def _keeps_marks_of_former_tenants(store: TensorPrefixStore) -> None:
    for arena in store._arenas.values():
        _replace(arena, "forget_slots", lambda slots: None)


def _gives_up_heads_first(store: TensorPrefixStore) -> None:
    chains, let_go = store._chains, store._slots.let_go

    def release(request_id: int) -> None:
        chain = chains.of_request.pop(request_id, None)
        for slot in chain.slots if chain is not None else ():
            if slot != ABSENT:
                let_go(slot)

    _replace(chains, "release", release)


def _evicts_the_youngest(store: TensorPrefixStore) -> None:
    slots, evict = store._slots, store._slots.evict

    def evict_last() -> bool:
        if slots._evictable:
            slots._evictable.move_to_end(next(reversed(slots._evictable)), last=False)
        return evict()

    _replace(slots, "evict", evict_last)


def _evicts_what_is_held(store: TensorPrefixStore) -> None:
    slots = store._slots

    def hold(slot: int) -> None:
        slots._refs[slot] += 1

    _replace(slots, "hold", hold)


def _overwrites_what_is_sealed(store: TensorPrefixStore) -> None:
    writer, put = store._writer, store._writer._put

    def put_over(spec: KeySpec, values: torch.Tensor, rows: PlacedRows) -> None:
        final, rows._is_final = rows._is_final, None
        try:
            put(spec, values, rows)
        finally:
            rows._is_final = final

    _replace(writer, "_put", put_over)


def _seals_what_was_guessed(store: TensorPrefixStore) -> None:
    _replace(store._writer, "_forget_from", lambda found, position: None)


def _seals_before_writing(store: TensorPrefixStore) -> None:
    """Seals an open block at once, so that the guess which stands there counts as its row."""
    _replace(store._slots, "announce", partial(_name, store._slots))


def _name(slots: SlotBook, slot: int, name: bytes) -> None:
    SlotBook.announce(slots, slot, name)
    slots.is_named[slot] = True


def _finds_names_at_the_steps_end(store: TensorPrefixStore) -> None:
    _replace(store._slots, "announce", lambda slot, name: None)
    _replace(store._slots, "name", partial(_name, store._slots))


def _keeps_guesses_of_absent_keys(store: TensorPrefixStore) -> None:
    writer = store._writer
    writing: set[bool] = set()

    def write(chunks: Sequence[RowChunk], outputs: Mapping[str, object], specs: Mapping[str, KeySpec]) -> list[Refusal]:
        writing.add(True)
        for arena in store._arenas.values():
            _replace(arena, "forget_rows", partial(_forget_unless, writing, arena))
        try:
            return StepWriter.write(writer, chunks, outputs, specs)
        finally:
            writing.clear()

    def forget_from(found: Any, position: int) -> None:
        writing.clear()
        StepWriter._forget_from(writer, found, position)
        writing.add(True)

    _replace(writer, "write", write)
    _replace(writer, "_forget_from", forget_from)


def _forget_unless(writing: set[bool], arena: RowArena, indexes: np.ndarray) -> None:
    if not writing:
        RowArena.forget_rows(arena, indexes)


def _drops_a_copy_with_its_rows(store: TensorPrefixStore) -> None:
    _replace(store._writer, "_merge", lambda mine, other: None)


def _keeps_what_has_no_head(store: TensorPrefixStore) -> None:
    chains, find = store._chains, store._chains._find

    def place(chain: Chain, first: int, end: int) -> list[int]:
        new = []
        chain.slots.extend([ABSENT] * (end - len(chain.slots)))
        for index in range(first, end):
            if chain.slots[index] == ABSENT and not find(chain, index):
                slot = store._slots.take()
                if slot is not None:
                    chain.slots[index] = slot
                    new.append(slot)
                    if index < len(chain.names):
                        store._slots.name(slot, chain.names[index])
        return new

    _replace(chains, "place", place)


def _makes_room_before_it_holds(store: TensorPrefixStore) -> None:
    """Attaches and places one chunk after the other."""
    writer = store._writer
    write = writer.write

    def write_each(
        chunks: Sequence[RowChunk], outputs: Mapping[str, object], specs: Mapping[str, KeySpec]
    ) -> list[Refusal]:
        for chunk in chunks:
            write([chunk], {}, specs)
        return write(chunks, outputs, specs)

    _replace(writer, "write", write_each)


def _reports_no_losses(store: TensorPrefixStore) -> None:
    slots, evict = store._slots, store._slots.evict

    def evict_silently() -> bool:
        before = dict(slots.changed)
        done = evict()
        slots.changed.clear()
        slots.changed.update(before)
        return done

    _replace(slots, "evict", evict_silently)


def _takes_one_too_many(store: TensorPrefixStore) -> None:
    slots, take = store._slots, store._slots.take

    def take_more() -> int | None:
        slots.capacity += 1
        try:
            return take()
        finally:
            slots.capacity -= 1

    _replace(slots, "take", take_more)


def _replace(
    part: SlotBook | ChainBook | RowArena | BufferPool[np.ndarray] | StepWriter,
    method: str,
    by: Callable[..., object],
) -> None:
    setattr(part, method, by)


def _broken(how: Break) -> MakeStore:
    def make(block_size: int, schema: Sequence[KeySpec], **options: Any) -> TensorPrefixStore:
        store = TensorPrefixStore(block_size, schema, **options)
        how(store)
        return store

    return make


MUTANTS: dict[str, MakeStore] = {
    "writes one step late": WritesLate,
    "writes aliases": WritesAliases,
    "lends a buffer twice": _broken(_lends_buffers_twice),
    "rounds a hit down": RoundsDown,
    "reads whole blocks only": ReadsWholeBlocks,
    "derives positions from a counter": CountsPositions,
    "fills with zeros": _broken(_fills_with_zeros),
    "publishes what is withdrawn": ReportsBeforeCommit,
    "reports no losses": _broken(_reports_no_losses),
    "keeps marks of former tenants": _broken(_keeps_marks_of_former_tenants),
    "gives up heads first": _broken(_gives_up_heads_first),
    "evicts the youngest": _broken(_evicts_the_youngest),
    "evicts what is held": _broken(_evicts_what_is_held),
    "takes one block too many": _broken(_takes_one_too_many),
    "overwrites what is sealed": _broken(_overwrites_what_is_sealed),
    "seals before writing": _broken(_seals_before_writing),
    "finds names at the step's end": _broken(_finds_names_at_the_steps_end),
    "takes chunks as they are packed": TakesChunksAsTheyArePacked,
    "seals what was guessed": _broken(_seals_what_was_guessed),
    "keeps guesses of absent keys": _broken(_keeps_guesses_of_absent_keys),
    "drops a copy with its rows": _broken(_drops_a_copy_with_its_rows),
    "keeps what has no head": _broken(_keeps_what_has_no_head),
    "makes room before it holds": _broken(_makes_room_before_it_holds),
}
