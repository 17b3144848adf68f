"""What `BlockPool` promises, said with two lists and no thought of speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


class NaivePool:
    """The same calls, for callers who make no mistake.

    Attributes:
        free: all free blocks, in the order in which they are handed out.
        refs: references by block.
        contents: what is published, as (key, block), in the order of publication.
        removed: keys of which the last block was evicted, in the order of eviction.
        unpublished: blocks that have lost their content so far, in this order.
    """

    def __init__(self, num_blocks: int) -> None:
        self.free = list(range(1, num_blocks))
        self.refs: Counter[int] = Counter()
        self.contents: list[tuple[bytes, int]] = []
        self.removed: list[bytes] = []
        self.unpublished: list[int] = []

    def key_of(self, block_id: int) -> bytes | None:
        return next((key for key, each in self.contents if each == block_id), None)

    def find(self, key: bytes) -> int | None:
        return next((block_id for each, block_id in self.contents if each == key), None)

    def get(self, num_blocks: int) -> list[int]:
        taken, self.free = self.free[:num_blocks], self.free[num_blocks:]
        for block_id in taken:
            self.refs[block_id] = 1
            key = self.key_of(block_id)
            if key is not None:
                self.contents.remove((key, block_id))
                self.unpublished.append(block_id)
                if self.find(key) is None:
                    self.removed.append(key)
        return taken

    def touch(self, block_ids: Sequence[int]) -> None:
        for block_id in filter(None, block_ids):
            if block_id in self.free:
                self.free.remove(block_id)
            self.refs[block_id] += 1

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        plain: list[int] = []
        for block_id in filter(None, block_ids):
            self.refs[block_id] -= 1
            if not self.refs[block_id]:
                (plain if self.key_of(block_id) is None else self.free).append(block_id)
        self.free = plain + self.free

    def publish(self, block_ids: Sequence[int], keys: Sequence[bytes]) -> list[int]:
        copies = []
        for index, (block_id, key) in enumerate(zip(block_ids, keys, strict=True)):
            if self.find(key) is not None:
                copies.append(index)
            self.contents.append((key, block_id))
        return copies

    def unpublish_all(self) -> None:
        self.unpublished += [block_id for _, block_id in self.contents]
        self.contents = []
