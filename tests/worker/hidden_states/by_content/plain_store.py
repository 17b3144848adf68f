"""What a tensor prefix store shall do, said as plainly as possible: dictionaries and loops, one row at a time.

Rows are whole numbers. A block is an object; who holds it is a set of request ids. Written from the package docstring
of the store, not from its code; nothing here is fast, and nothing is shared with the product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mmcached.worker.hidden_states import RowChunk, RowSpan


@dataclass(eq=False)
class Block:
    rows: dict[tuple[str, int], int] = field(default_factory=dict)
    holders: set[int] = field(default_factory=set)
    name: bytes | None = None
    is_final: bool = False


@dataclass
class Held:
    names: list[bytes] = field(default_factory=list)
    blocks: dict[int, Block] = field(default_factory=dict)


class PlainStore:
    def __init__(self, block_size: int, keys: Sequence[str], capacity: int) -> None:
        self.block_size = block_size
        self.keys = list(keys)
        self.capacity = capacity
        self.requests: dict[int, Held] = {}
        self.sealed: dict[bytes, Block] = {}
        self.evictable: list[Block] = []
        self.changed: dict[bytes, None] = {}
        self.written: list[tuple[Block, str, int]] = []
        self.num_written = self.num_replayed = self.num_dropped = self.num_evictions = 0

    @property
    def blocks(self) -> set[Block]:
        return {*self.sealed.values(), *(block for held in self.requests.values() for block in held.blocks.values())}

    # ---- a step

    def write(self, chunks: Sequence[RowChunk], outputs: Mapping[str, Sequence[int]]) -> None:
        """Outputs: by key one number for each packed row."""
        has_names = any(chunk.block_hashes for chunk in chunks)
        in_turn = sorted(chunks, key=lambda chunk: chunk.start) if has_names else chunks
        to_seal = [(chunk, index) for chunk in in_turn for index in self._learn_names(chunk.request_id, chunk)]
        for chunk in in_turn:
            for index in range(chunk.start // self.block_size, self._last_block(chunk) + 1):
                self._place(chunk.request_id, index)
        for key in self.keys:
            packed = 0
            for chunk in chunks:
                for position in range(chunk.start, chunk.start + chunk.num_rows):
                    value = outputs[key][packed] if key in outputs else None
                    self._write_row(chunk.request_id, position, key, value)
                    packed += 1
        for chunk in chunks:
            for index in range(chunk.start // self.block_size, self._last_block(chunk) + 1):
                block = self.requests[chunk.request_id].blocks.get(index)
                if block is not None and block.name is not None:
                    self.changed[block.name] = None
        for chunk, index in to_seal:
            self._seal(chunk.request_id, index)

    def commit(self) -> dict[bytes, dict[str, int]]:
        self.written.clear()
        report = {name: self.leading(name) for name in self.changed}
        self.changed.clear()
        return report

    def withdraw(self) -> None:
        for block, key, offset in self.written:
            block.rows.pop((key, offset), None)
        self.written.clear()

    def attach(self, request_id: int, names: Sequence[bytes]) -> None:
        self._learn_names(request_id, RowChunk(request_id, 0, 1, 0, names))

    def release(self, request_id: int) -> None:
        held = self.requests.pop(request_id, Held())
        for index in sorted(held.blocks, reverse=True):
            self._let_go(request_id, held.blocks[index])

    def reset(self) -> None:
        self.withdraw()
        self.requests.clear()
        self.sealed.clear()
        self.evictable.clear()
        self.changed.clear()

    def declare(self, key: str, capacity: int) -> None:
        """A key that is new, or other than before; so many blocks fit from now on."""
        if key in self.keys:
            for block in self.blocks:
                for offset in range(self.block_size):
                    block.rows.pop((key, offset), None)
            self.changed.update(dict.fromkeys(self.sealed))
        else:
            self.keys.append(key)
        while len(self.blocks) > capacity:
            if self.evictable:
                self._evict()
            else:
                request_id = [each for each, held in self.requests.items() if held.blocks][-1]
                held = self.requests[request_id]
                self._let_go(request_id, held.blocks.pop(max(held.blocks)))
        self.capacity = capacity

    # ---- questions

    def leading(self, name: bytes) -> dict[str, int]:
        block, counts = self.sealed.get(name), {}
        for key in self.keys if block is not None else ():
            num = 0
            while block is not None and (key, num) in block.rows:
                num += 1
            if num:
                counts[key] = num
        return counts

    def usable_prefix(self, names: Sequence[bytes], num_rows: int, keys: Sequence[str]) -> int:
        for position in range(num_rows if keys else 0):
            index, offset = divmod(position, self.block_size)
            block = self.sealed.get(names[index]) if index < len(names) else None
            if block is None or any((key, offset) not in block.rows for key in keys):
                return position
        return num_rows

    def read(self, span: RowSpan, key: str) -> list[int] | tuple[int, int]:
        """Return the rows, or the first run of positions without one."""
        blocks = self.requests[span.request_id].blocks if span.request_id in self.requests else {}
        found: list[int | None] = []
        for position in range(span.first, span.end):
            index, offset = divmod(position, self.block_size)
            found.append(blocks[index].rows.get((key, offset)) if index in blocks else None)
        if None not in found:
            return [value for value in found if value is not None]
        first = end = found.index(None)
        while end < len(found) and found[end] is None:
            end += 1
        return span.first + first, span.first + end

    # ---- the rules

    def _last_block(self, chunk: RowChunk) -> int:
        return (chunk.start + chunk.num_rows - 1) // self.block_size

    def _learn_names(self, request_id: int, chunk: RowChunk) -> list[int]:
        """Return the blocks that are open and have got a name now; all find them, where nobody else has the name."""
        held = self.requests.setdefault(request_id, Held())
        open_blocks = []
        for index, name in enumerate(chunk.block_hashes, chunk.first_block):
            if index == len(held.names):
                held.names.append(name)
                if index in held.blocks:
                    open_blocks.append(index)
                    self._drop_guesses(held.blocks[index], index, chunk)
                    if name not in self.sealed:
                        self._name(held.blocks[index], name)
                else:
                    self._find(request_id, index)
        return open_blocks

    def _find(self, request_id: int, index: int) -> bool:
        """Hold the sealed block of this index, and all before it."""
        held = self.requests[request_id]
        if index >= len(held.names) or held.names[index] not in self.sealed:
            return False
        for at in range(index + 1):
            if at not in held.blocks:
                block = held.blocks[at] = self.sealed[held.names[at]]
                block.holders.add(request_id)
                if block in self.evictable:
                    self.evictable.remove(block)
        return True

    def _place(self, request_id: int, index: int) -> None:
        held = self.requests[request_id]
        if index in held.blocks or self._find(request_id, index):
            return
        if index and index - 1 not in held.blocks and not self._find(request_id, index - 1):
            return
        if len(self.blocks) >= self.capacity:
            if not self.evictable:
                return
            self._evict()
        block = held.blocks[index] = Block(holders={request_id})
        if index < len(held.names):
            self._name(block, held.names[index])
            block.is_final = True

    def _drop_guesses(self, block: Block, index: int, chunk: RowChunk) -> None:
        for key, offset in list(block.rows):
            if index * self.block_size + offset >= chunk.start + chunk.num_rows:
                del block.rows[key, offset]

    def _write_row(self, request_id: int, position: int, key: str, value: int | None) -> None:
        index, offset = divmod(position, self.block_size)
        block = self.requests[request_id].blocks.get(index)
        if block is None:
            self.num_dropped += value is not None
        elif value is None:
            if not block.is_final:
                block.rows.pop((key, offset), None)
        elif block.is_final and (key, offset) in block.rows:
            self.num_replayed += 1
        else:
            self.num_written += 1
            block.rows[key, offset] = value
            self.written.append((block, key, offset))

    def _seal(self, request_id: int, index: int) -> None:
        held = self.requests[request_id]
        mine, name = held.blocks[index], held.names[index]
        other = self.sealed.get(name)
        if other is None or other is mine:
            self._name(mine, name)
            mine.is_final = True
            return
        held.blocks[index] = other
        other.holders.add(request_id)
        if other in self.evictable:
            self.evictable.remove(other)
        self.changed[name] = None
        for place, value in mine.rows.items():
            if place not in other.rows:
                other.rows[place] = value
                self.written.append((other, *place))

    def _name(self, block: Block, name: bytes) -> None:
        block.name = name
        self.sealed[name] = block
        self.changed[name] = None

    def _let_go(self, request_id: int, block: Block) -> None:
        block.holders.discard(request_id)
        if not block.holders and block.name is not None:
            self.evictable.append(block)

    def _evict(self) -> None:
        block = self.evictable.pop(0)
        assert block.name is not None
        del self.sealed[block.name]
        self.changed[block.name] = None
        self.num_evictions += 1
