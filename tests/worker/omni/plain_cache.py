"""The tensor prefix cache by slots as plain dictionaries: what it may deliver, and what it must call missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Row = tuple[int, ...]
Found = list[Row] | tuple[int, int]
"""A request's rows, or the first run of positions that are missing."""


class PlainCache:
    """Keys are known beforehand. Times are those of steps."""

    def __init__(self, keys: Sequence[str], block_size: int) -> None:
        self.rows: dict[str, dict[int, Row]] = {key: {} for key in keys}
        self.written_at: dict[int, int] = {}
        self.staged: dict[str, list[tuple[str, int, Row, int]]] = {}
        self.block_size = block_size
        self.time = 0

    def slot(self, blocks: Sequence[int], position: int) -> int:
        return blocks[position // self.block_size] * self.block_size + position % self.block_size

    def write(self, slots: Sequence[int], outputs: Mapping[str, Sequence[Row]]) -> None:
        """Replace the tenants of the slots: what `outputs` lacks is missing."""
        self.time += 1
        for index, slot in enumerate(slots):
            self.written_at[slot] = self.time
            for key, kept in self.rows.items():
                kept.pop(slot, None)
                if key in outputs:
                    kept[slot] = outputs[key][index]

    def forget(self, slots: Sequence[int]) -> None:
        self.write(slots, {})

    def stage(self, req_id: str, key: str, first: int, rows: Sequence[Row]) -> None:
        """Keep rows of positions `first …`, in place of all that the request had from there on."""
        earlier = [entry for entry in self.staged.get(req_id, []) if entry[0] != key or entry[1] < first]
        staged = [(key, first + index, row, self.time) for index, row in enumerate(rows)]
        self.staged[req_id] = earlier + staged

    def commit(self, req_ids: Sequence[str], blocks: Mapping[str, Sequence[int]]) -> None:
        staged = [(*entry, blocks[req_id]) for req_id in req_ids for entry in self.staged.pop(req_id, [])]
        for key, position, row, time, table in sorted(staged, key=lambda entry: entry[3]):
            slot = self.slot(table, position)
            if self.written_at.get(slot, 0) <= time:
                self.rows[key][slot] = row

    def discard(self, req_id: str) -> None:
        self.staged.pop(req_id, None)

    def prefix(self, key: str, blocks: Sequence[int], num_rows: int) -> Found:
        found = [self.rows[key].get(self.slot(blocks, position)) for position in range(num_rows)]
        if None not in found:
            return [row for row in found if row is not None]
        first = found.index(None)
        return first, next((at for at in range(first, num_rows) if found[at] is not None), num_rows)
