"""What a step writes, and how that is undone if the step fails.

    chunks ── names: hold what is sealed ──> blocks: find, or make room ──> rows, key by key ──> seal what got its name
              of all of them, before           nothing is evicted that       noted where          while rows of other
              room is made for any             a chunk stands behind         they belong          tokens could be there
                                                                               └── staging: launched, all together ──┘

Names and blocks are taken in the order of where chunks start: who stands behind a block starts later than whoever
fills it in the same step. An open block is found by its name as soon as it has one; only if another block has the name
it waits, until its rows are there and can be merged.

Knows nothing of who reads. Invariant: a row of a sealed block is written once; every row written since the last commit
is in the journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from mmcached.wire.errors import InvalidRequest
from mmcached.worker.integers import check_integers
from mmcached.worker.prefix_store.arena import RowArena
from mmcached.worker.prefix_store.chains import ABSENT, Chain, ChainBook
from mmcached.worker.prefix_store.layout import Runs, as_array
from mmcached.worker.prefix_store.records import Refusal, RowChunk
from mmcached.worker.prefix_store.schema import KeySpec
from mmcached.worker.prefix_store.slots import SlotBook
from mmcached.worker.prefix_store.staging import Staging
from mmcached.worker.prefix_store.values import ValueBook


class _OpenBlocks(NamedTuple):
    """Blocks of a request that have got their name while they are open, by a chunk `[start, end)`."""

    chain: Chain
    blocks: Sequence[int]
    start: int
    end: int


class StepWriter:
    """Writes into the books and arenas of a store.

    Args:
        arenas: by key; others may add to it.

    Attributes:
        num_written, num_replayed, num_dropped: rows of one key: kept, there already, without a place.
    """

    def __init__(
        self,
        block_size: int,
        slots: SlotBook,
        chains: ChainBook,
        *,
        max_positions: int,
        arenas: Mapping[str, RowArena],
        staging: Staging,
        values: ValueBook,
    ) -> None:
        self.num_written = self.num_replayed = self.num_dropped = 0
        self._block_size = block_size
        self._max_positions = max_positions
        self._slots = slots
        self._chains = chains
        self._arenas = arenas
        self._staging = staging
        self._values = values
        self._journal: list[tuple[RowArena, np.ndarray]] = []

    @property
    def is_open(self) -> bool:
        """Whether something was written since the last commit."""
        return bool(self._journal)

    def write(
        self, chunks: Sequence[RowChunk], outputs: Mapping[str, object], specs: Mapping[str, KeySpec]
    ) -> list[Refusal]:
        """Keep a step's outputs; return what does not fit."""
        try:
            refusals, slots = self._write(chunks, outputs, specs)
        except BaseException:
            self._staging.abandon()
            raise
        if self._staging.has_to_launch:
            slots = slots[slots >= 0]
            self._staging.launch(slots[self._slots.is_named[slots]])
        return refusals

    def commit(self) -> None:
        self._journal.clear()
        self._values.commit()

    def withdraw(self) -> None:
        """Forget what was written since the last commit."""
        for arena, indexes in self._journal:
            self._staging.forget_rows(arena, indexes)
        self._journal.clear()
        self._values.withdraw()

    # ---- inside

    def _write(
        self, chunks: Sequence[RowChunk], outputs: Mapping[str, object], specs: Mapping[str, KeySpec]
    ) -> tuple[list[Refusal], np.ndarray]:
        """Do all but launch the rows; return what does not fit, and the slots that may have become sealed or full."""
        request_ids, firsts, nums, _, names = zip(*chunks, strict=True) if chunks else ((), (), (), (), ())
        check_integers("chunks", firsts, nums)
        refused: dict[int, InvalidRequest] = {}
        if chunks and (min(firsts) < 0 or min(nums) < 1 or max(firsts) + max(nums) > self._max_positions):
            refused, firsts, nums = self._refuse(chunks)
        starts, counts = as_array(firsts), as_array(nums)
        open_blocks: list[_OpenBlocks] = []
        numbers: Sequence[int] = [number for number, its_names in enumerate(names) if its_names]
        has_names = bool(numbers)
        if has_names:
            if not self._chains.of_request.keys() >= set(request_ids):
                numbers = range(len(chunks))  # all chains are opened
            numbers = sorted(numbers, key=firsts.__getitem__)
        for number in numbers:
            if number in refused:
                continue
            if not names[number]:
                self._chains.open(request_ids[number])
                continue
            try:
                open_blocks.append(self._attach(chunks[number]))
            except InvalidRequest as error:
                refused[number] = error
        runs = Runs(self._block_size, starts, counts)
        sealed: list[int] = []
        try:
            found = self._place(request_ids, runs, refused, firsts if has_names else None)
            slots = as_array(found)
            rows = _PlacedRows(runs, found, slots, self._slots)
            refusals = [Refusal("", request_ids[number], error) for number, error in refused.items()]
            written = set()
            for key, value in outputs.items():
                try:
                    spec = specs.get(key)
                    if spec is None:
                        raise InvalidRequest("key", key, "has not been declared")
                    if spec.kind == "per_token":
                        self._put_all(spec, spec.check_stacked(value, runs.num_rows), rows)
                        written.add(key)
                    elif spec.kind == "global":
                        refusals += self._keep(spec, [None], [value])
                    elif spec.kind == "per_request":
                        refusals += self._keep(spec, request_ids, list(spec.check_stacked(value, len(chunks))))
                    else:
                        refusals += self._keep(spec, request_ids, spec.check_list(value, len(chunks)))
                except InvalidRequest as error:
                    refusals.append(Refusal(key, None, error))
            for key in self._arenas.keys() - written:
                self._staging.forget_rows(self._arenas[key], rows.in_open_blocks)
            self._slots.note_changed(slots)
        except BaseException:  # what has got its name is found, and what was to replace guesses there may not have come
            for each in open_blocks:
                self._forget_from(each, each.start)
            raise
        finally:
            sealed += [slot for each in open_blocks for slot in self._seal(each)]
        return refusals, np.concatenate((slots, as_array(sealed))) if sealed else slots

    def _refuse(self, chunks: Sequence[RowChunk]) -> tuple[dict[int, InvalidRequest], tuple[int, ...], tuple[int, ...]]:
        """Return what is wrong with chunks that cannot be, by their number; and all starts and numbers of rows.

        A number of rows that cannot be is none: if the outputs have other rows, they are refused too.
        """
        refused, firsts, nums = {}, [], []
        for number, (request_id, start, num_rows, _, _) in enumerate(chunks):
            is_wrong = start < 0 or num_rows < 1 or start + num_rows > self._max_positions
            if is_wrong:
                limit = f"request {request_id}: a chunk has rows of positions 0 … {self._max_positions - 1}"
                refused[number] = InvalidRequest("chunk", f"{num_rows} rows from {start}", limit)
            firsts.append(0 if is_wrong else start)
            nums.append(num_rows if 0 < num_rows <= self._max_positions else 0)
        return refused, tuple(firsts), tuple(nums)

    def _attach(self, chunk: RowChunk) -> _OpenBlocks:
        """Hold what is sealed under a chunk's names; return its blocks that have got their name open."""
        request_id, start, num_rows, first_block, names = chunk
        self._chains.check_names(request_id, first_block, names)
        chain = self._chains.open(request_id)
        found = _OpenBlocks(chain, self._chains.add_names(chain, first_block, names), start, start + num_rows)
        self._forget_from(found, found.end)  # rows of tokens that were guessed and came otherwise
        return found

    def _place(
        self, request_ids: Sequence[int], runs: Runs, refused: Mapping[int, object], starts: Sequence[int] | None
    ) -> list[int]:
        """Return the slots of all blocks of all chunks, after making room for those that are new.

        Args:
            starts: of the chunks, in whose order they get their room; None: it does not matter.
        """
        first_blocks = runs.first_blocks.tolist()
        new: list[int] = []
        if runs.are_single_rows and not refused:  # requests that decode: most of them go on in a block that is there
            found = self._chains.slots_of(request_ids, first_blocks)
            absent = [number for number, slot in enumerate(found) if slot == ABSENT]
            for number in sorted(absent, key=starts.__getitem__) if starts else absent:
                found[number : number + 1] = self._room_for(request_ids[number], first_blocks[number], 1, new)
            self._chains.remember(request_ids, first_blocks, found)
        else:
            num_blocks = runs.num_blocks.tolist()
            parts = [[ABSENT] * num for num in num_blocks]
            for number in sorted(range(len(parts)), key=starts.__getitem__) if starts else range(len(parts)):
                if number not in refused:
                    first, num = first_blocks[number], num_blocks[number]
                    parts[number] = self._room_for(request_ids[number], first, num, new)
            found = [slot for part in parts for slot in part]
        if new:
            self._staging.forget_slots(new, self._arenas.values())
        return found

    def _room_for(self, request_id: int, first: int, num_blocks: int, new: list[int]) -> list[int]:
        """Return the slots of a request's blocks; add to `new` those that were taken for it now."""
        chain = self._chains.open(request_id)
        if len(chain.slots) < first + num_blocks or ABSENT in chain.slots[first : first + num_blocks]:
            new += self._chains.place(chain, first, first + num_blocks)
        return chain.slots[first : first + num_blocks]

    def _put_all(self, spec: KeySpec, values: torch.Tensor, rows: _PlacedRows) -> None:
        for first, end in rows.parts or [(0, len(rows.indexes))]:
            self._put(spec, values, first, rows.indexes[first:end])

    def _put(self, spec: KeySpec, rows: torch.Tensor, first: int, indexes: np.ndarray) -> None:
        """Write the rows from `first` on, but for those without a place, and those that a sealed block has already."""
        arena = self._arenas[spec.name]
        keep = indexes >= 0
        num_placed = int(np.count_nonzero(keep))
        written = arena.are_written(indexes)
        if written.any():
            keep &= ~(written & self._slots.is_named[indexes // self._block_size])
        num_kept = int(np.count_nonzero(keep))
        self.num_dropped += len(indexes) - num_placed
        self.num_replayed += num_placed - num_kept
        self.num_written += num_kept
        places = None
        if num_kept < rows.shape[0]:
            places = np.flatnonzero(keep) + first
            indexes = indexes[keep]
        if num_kept:
            self._journal.append((arena, indexes))
            self._staging.put(arena, rows, places, indexes, is_deferred=spec.copy == "deferred")

    def _keep(self, spec: KeySpec, owners: Sequence[int | None], values: Sequence[object]) -> list[Refusal]:
        refusals = []
        for owner, value in zip(owners, values, strict=True):
            try:
                self._values.put(spec.name, owner, spec.check_whole(value))
            except InvalidRequest as error:
                refusals.append(Refusal(spec.name, owner, error))
        return refusals

    def _forget_from(self, found: _OpenBlocks, position: int) -> None:
        """Forget the rows of these blocks from a position on."""
        block_size = self._block_size
        for index in found.blocks:
            num_rows = min((index + 1) * block_size - position, block_size)
            if num_rows > 0:
                behind = (found.chain.slots[index] + 1) * block_size
                for arena in self._arenas.values():
                    self._staging.forget_rows(arena, np.arange(behind - num_rows, behind))

    def _seal(self, found: _OpenBlocks) -> list[int]:
        """Seal open blocks under their names; return the slots that have these names then."""
        for index in found.blocks:
            self._chains.seal(found.chain, index, self._merge)
        return [found.chain.slots[index] for index in found.blocks]

    def _merge(self, source: int, target: int) -> None:
        """Give to a sealed block the rows that it lacks and its open copy has."""
        for arena in self._arenas.values():
            added = self._staging.merge(arena, source, target)
            if len(added):
                self._journal.append((arena, added))


class _PlacedRows:
    """Where the packed rows of a step go.

    Attributes:
        indexes: of each row in every arena, negative where there was no room.
        parts: None: all rows are written together. Where two runs touch the same block, run after run: a row that both
            have is the first one's if the block is sealed, and the last one's if it is open.
    """

    __slots__ = ("_block_size", "_book", "indexes", "parts")

    def __init__(self, runs: Runs, found: list[int], slots: np.ndarray, book: SlotBook) -> None:
        self.indexes = runs.indexes(slots)
        self.parts: list[tuple[int, int]] | None = None
        self._book = book
        self._block_size = runs.block_size
        if len(set(found)) < len(found) and len(set(found) - {ABSENT}) < len(found) - found.count(ABSENT):
            bounds = zip(runs.first_rows.tolist(), runs.counts.tolist(), strict=True)
            self.parts = [(first, first + count) for first, count in bounds]

    @property
    def in_open_blocks(self) -> np.ndarray:
        """Indexes of rows whose tokens may be others than those that were there before."""
        placed = self.indexes[self.indexes >= 0]
        indexes: np.ndarray = placed[~self._book.is_named[placed // self._block_size]]
        return indexes
