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

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from mmcached.wire.errors import InvalidRequest
from mmcached.worker.integers import check_integers
from mmcached.worker.prefix_store.arena import RowArena
from mmcached.worker.prefix_store.chains import ABSENT, Chain, ChainBook
from mmcached.worker.prefix_store.layout import Runs, as_array
from mmcached.worker.prefix_store.placed_rows import PlacedRows
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
        owners = request_ids
        refusals: list[Refusal] = []
        wrong: set[int] = set()
        if chunks and (min(firsts) < 0 or min(nums) < 1 or max(firsts) + max(nums) > self._max_positions):
            chunks = self._without_rows(chunks, refusals, wrong)
            request_ids, firsts, nums, _, names = zip(*chunks, strict=True) if chunks else ((), (), (), (), ())
        runs = Runs(self._block_size, as_array(firsts), as_array(nums), sum(nums))
        has_names = any(names)
        open_blocks = self._take_names(chunks, refusals, wrong) if has_names else []
        sealed: list[int] = []
        try:
            found = self._place(request_ids, runs, wrong, firsts if has_names else None)
            slots = as_array(found)
            rows = PlacedRows(runs, found, slots, self._slots.is_named)
            written = set()
            for key, value in outputs.items():
                try:
                    spec = specs.get(key)
                    if spec is None:
                        raise InvalidRequest("key", key, "has not been declared")
                    if spec.kind == "per_token":
                        self._put(spec, spec.check_stacked(value, runs.num_rows), rows)
                        written.add(key)
                    elif spec.kind == "global":
                        refusals += self._keep(spec, [None], [value])
                    elif spec.kind == "per_request":
                        refusals += self._keep(spec, owners, list(spec.check_stacked(value, len(owners))))
                    else:
                        refusals += self._keep(spec, owners, spec.check_list(value, len(owners)))
                except InvalidRequest as error:
                    refusals.append(Refusal(key, None, error))
            if len(written) < len(self._arenas):
                for key in self._arenas.keys() - written:
                    self._staging.forget_rows(self._arenas[key], rows.in_open_blocks)
            if rows.has_named:
                self._slots.note_changed(slots)
        except BaseException:  # what has got its name is found, and what was to replace guesses there may not have come
            for each in open_blocks:
                self._forget_from(each, each.start)
            raise
        finally:
            for each in open_blocks:
                sealed += self._seal(each)
        if sealed and self._staging.has_to_launch:
            slots = np.concatenate((slots, as_array(sealed)))
        return refusals, slots

    def _without_rows(self, chunks: Sequence[RowChunk], refusals: list[Refusal], wrong: set[int]) -> Sequence[RowChunk]:
        """Return the chunks that have rows in the outputs; those at positions that cannot be are `wrong` in them.

        A number of rows that cannot be is taken for none: outputs that have these rows all the same are too long.
        """
        with_rows: list[RowChunk] = []
        for chunk in chunks:
            request_id, start, num_rows, _, _ = chunk
            is_wrong = start < 0 or num_rows < 1 or start + num_rows > self._max_positions
            if is_wrong:
                limit = f"request {request_id}: a chunk has rows of positions 0 … {self._max_positions - 1}"
                refusals.append(
                    Refusal("", request_id, InvalidRequest("chunk", f"{num_rows} rows from {start}", limit))
                )
            if 0 < num_rows <= self._max_positions:
                if is_wrong:
                    wrong.add(len(with_rows))
                with_rows.append(RowChunk(request_id, 0, num_rows) if is_wrong else chunk)
        return with_rows

    def _take_names(self, chunks: Sequence[RowChunk], refusals: list[Refusal], wrong: set[int]) -> list[_OpenBlocks]:
        """Hold what is sealed under the names of all chunks; return the blocks that have got their name open.

        What is refused is added to `refusals`, and the chunk's number to `wrong`.
        """
        numbers: Iterable[int] = range(len(chunks))
        if self._chains.of_request.keys() >= {chunk.request_id for chunk in chunks}:
            numbers = [number for number in numbers if chunks[number].names]  # the others' chains are there
        open_blocks = []
        for number in sorted(numbers, key=lambda number: chunks[number].start):
            if number in wrong:
                continue
            if not chunks[number].names:
                self._chains.open(chunks[number].request_id)
                continue
            try:
                open_blocks.append(self._attach(chunks[number]))
            except InvalidRequest as error:
                refusals.append(Refusal("", chunks[number].request_id, error))
                wrong.add(number)
        return open_blocks

    def _attach(self, chunk: RowChunk) -> _OpenBlocks:
        """Hold what is sealed under a chunk's names; return its blocks that have got their name open."""
        request_id, start, num_rows, first_block, names = chunk
        self._chains.check_names(request_id, first_block, names)
        chain = self._chains.open(request_id)
        found = _OpenBlocks(chain, self._chains.add_names(chain, first_block, names), start, start + num_rows)
        self._forget_from(found, found.end)  # rows of tokens that were guessed and came otherwise
        return found

    def _place(
        self, request_ids: Sequence[int], runs: Runs, wrong: Collection[int], starts: Sequence[int] | None
    ) -> list[int]:
        """Return the slots of all blocks of all chunks, after making room for those that are new.

        Args:
            starts: of the chunks, in whose order they get their room; None: it does not matter.
        """
        first_blocks = runs.first_blocks.tolist()
        new: list[int] = []
        if runs.are_single_rows and not wrong:  # requests that decode: most of them go on in a block that is there
            found = self._chains.slots_of(request_ids, first_blocks)
            if ABSENT in found:
                absent = [number for number, slot in enumerate(found) if slot == ABSENT]
                for number in sorted(absent, key=starts.__getitem__) if starts else absent:
                    found[number : number + 1] = self._room_for(request_ids[number], first_blocks[number], 1, new)
                self._chains.remember(request_ids, first_blocks, found)
        else:
            num_blocks = runs.num_blocks.tolist()
            parts = [[ABSENT] * num for num in num_blocks]
            for number in sorted(range(len(parts)), key=starts.__getitem__) if starts else range(len(parts)):
                if number not in wrong:
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

    def _put(self, spec: KeySpec, values: torch.Tensor, rows: PlacedRows) -> None:
        """Write a key's rows of the step."""
        arena = self._arenas[spec.name]
        for first, end in rows.parts:
            places, indexes, num_placed = rows.to_write(arena, first, end)
            self.num_dropped += end - first - num_placed
            self.num_replayed += num_placed - len(indexes)
            self.num_written += len(indexes)
            if len(indexes):
                self._journal.append((arena, indexes))
                self._staging.put(arena, values, places, indexes, is_deferred=spec.copy == "deferred")

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
