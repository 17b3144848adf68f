"""The tensor prefix cache by slots as plain dictionaries: what it may deliver, and what it must call missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

Row = tuple[int, ...]
Found = list[Row] | tuple[int, int]
"""A request's rows, or the first run of positions that are missing."""


class PlainCache:
    """Keys are known beforehand.

    Attributes:
        rows: of each key, by slot.
        staged: of the deferred key, by slot: the request and its row.
    """

    def __init__(self, keys: Sequence[str], deferred: str, *, num_slots: int, block_size: int) -> None:
        self.rows: dict[str, dict[int, Row]] = {key: {} for key in keys}
        self.deferred = deferred
        self.staged: dict[int, tuple[str, Row]] = {}
        self.stagers: set[str] = set()
        self.num_staged = 0  # since the last writing out
        self.num_slots = num_slots
        self.block_size = block_size

    def slot(self, blocks: Sequence[int], position: int) -> int:
        return blocks[position // self.block_size] * self.block_size + position % self.block_size

    def write(self, slots: Sequence[int], outputs: Mapping[str, Sequence[Row]]) -> None:
        """Replace the tenants of the slots: what `outputs` lacks is missing."""
        for index, slot in enumerate(slots):
            self.staged.pop(slot, None)
            for key, kept in self.rows.items():
                kept.pop(slot, None)
                if key in outputs:
                    kept[slot] = outputs[key][index]

    def forget(self, slots: Sequence[int]) -> None:
        self.write(slots, {})

    def stage(self, slots: Sequence[int], owners: Sequence[str], rows: Sequence[Row]) -> None:
        """Keep the rows of a step. If there were more than slots, what was there before is written first."""
        if self.num_staged + len(rows) > self.num_slots:
            self.write_out()
        self.num_staged += len(rows)
        for slot, owner, row in zip(slots, owners, rows, strict=True):
            self.staged[slot] = owner, row
            self.stagers.add(owner)

    def commit(self, req_ids: Iterable[str]) -> None:
        if self.stagers.intersection(req_ids):
            self.write_out()

    def discard(self, req_id: str) -> None:
        self.stagers.discard(req_id)
        self.staged = {slot: (owner, row) for slot, (owner, row) in self.staged.items() if owner != req_id}

    def write_out(self) -> None:
        self.rows[self.deferred] |= {slot: row for slot, (_, row) in self.staged.items()}
        self.staged.clear()
        self.stagers.clear()
        self.num_staged = 0

    def settle(self, slots: Iterable[int]) -> None:
        """These slots are read."""
        if not self.staged.keys().isdisjoint(slots):
            self.write_out()

    def prefix(self, key: str, blocks: Sequence[int], num_rows: int) -> Found:
        found = [self.rows[key].get(self.slot(blocks, position)) for position in range(num_rows)]
        if None not in found:
            return [row for row in found if row is not None]
        first = found.index(None)
        return first, next((at for at in range(first, num_rows) if found[at] is not None), num_rows)
