"""Maps content keys to published blocks and back.

The same content may be published in several blocks, if two requests computed it at once: block tables are append-only,
so no block is replaced. Lookups find the first block; once it is evicted, the oldest copy.

Invariant: a key leads to a block exactly as long as a block has that key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import length_hint

from mmcached.wire.errors import InvariantError


class PublishedBlocks:
    """Two-way map between content keys and blocks; only reads `ref_counts`.

    Attributes:
        key_of: the key of each block by block id, None if it is not published; read-only for callers.
        find: returns the first published block with a key, or None.
        num_forgotten: counter that grows whenever a key no longer leads to the same block.
    """

    def __init__(self, ref_counts: Sequence[int]) -> None:
        self.key_of: list[bytes | None] = [None] * len(ref_counts)
        self.num_forgotten = 0
        self._ref_counts = ref_counts
        self._first: dict[bytes, int] = {}
        self._copies: dict[bytes, dict[int, None]] = {}  # each in the order of its publication
        self._num_copies = 0
        self.find = self._first.get

    def __len__(self) -> int:
        return len(self._first) + self._num_copies

    def find_prefix(self, keys: Iterable[bytes]) -> list[int]:
        """Return the blocks that hold these contents, up to the first missing key."""
        found: list[int] = []
        with suppress(KeyError):  # raised by the first missing key; `extend` has stored the blocks before it
            found.extend(map(self._first.__getitem__, keys))
        return found

    def add(self, block_ids: Sequence[int], keys: Sequence[bytes]) -> Sequence[int]:
        """Publish held blocks, each under the key at the same index; raises as `BlockPool.publish`.

        Returns:
            The indices of blocks that are copies of content published before; usually the empty tuple.
        """
        if len(block_ids) != len(keys):
            raise InvariantError(f"{len(block_ids)} blocks cannot be published under {len(keys)} keys")
        key_of, ref_counts = self.key_of, self._ref_counts
        if (
            len(block_ids) == 1
            and ref_counts[block_ids[0]]
            and key_of[block_ids[0]] is None
            and keys[0] not in self._first
        ):
            # One new block is what most decode steps publish; this path takes a quarter of the time.
            key_of[block_ids[0]] = keys[0]
            self._first[keys[0]] = block_ids[0]
            return ()
        rest = iter(block_ids)
        for block_id, key in zip(rest, keys, strict=True):
            if key_of[block_id] is not None or not ref_counts[block_id]:
                for done_id in block_ids[: -1 - length_hint(rest)]:
                    key_of[done_id] = None
                raise InvariantError(f"block {block_id} cannot be published: not held, or published before")
            key_of[block_id] = key
        first = list(map(self._first.setdefault, keys, block_ids))
        return () if first == list(block_ids) else self._add_copies(block_ids, keys, first)

    def remove(self, block_ids: Sequence[int]) -> None:
        """Unpublish these published blocks; raises `InvariantError` if one cannot be found by its key."""
        first, key_of = self._first, self.key_of
        alone = self._remove_copies(block_ids) if self._copies else block_ids
        try:
            for block_id in alone:
                del first[key_of[block_id]]  # type: ignore[arg-type]  # published, so not None
                key_of[block_id] = None
        except KeyError as error:
            raise InvariantError(f"one of the blocks {block_ids} cannot be found by its key") from error
        self.num_forgotten += len(alone)

    def remove_and_return_keys(self, block_ids: Sequence[int]) -> list[bytes]:
        """Unpublish these published blocks, and return the keys that no block has any longer."""
        key_of, had_copies = self.key_of, bool(self._copies)
        keys: list[bytes] = [key_of[block_id] for block_id in block_ids]  # type: ignore[misc]  # published
        self.remove(block_ids)
        return [key for key in dict.fromkeys(keys) if key not in self._first] if had_copies else keys

    def clear(self) -> None:
        self.num_forgotten += len(self._first)
        self._first.clear()
        self._copies.clear()
        self._num_copies = 0
        self.key_of[:] = [None] * len(self.key_of)

    def check_integrity(self) -> None:
        if not self._copies.keys() <= self._first.keys() or {} in self._copies.values():
            raise InvariantError("a key has copies, but no first block, or an empty list of them")
        by_key = {(block_id, key) for key, block_id in self._first.items()}
        by_key |= {(block_id, key) for key, copies in self._copies.items() for block_id in copies}
        by_block = {(block_id, key) for block_id, key in enumerate(self.key_of) if key is not None}
        if by_key != by_block or len(by_key) != len(self):
            raise InvariantError(f"keys and blocks disagree on what is published: {by_key ^ by_block}")

    def _add_copies(self, block_ids: Sequence[int], keys: Sequence[bytes], first: Sequence[int]) -> list[int]:
        copies = [index for index, block_id in enumerate(block_ids) if first[index] != block_id]
        for index in copies:
            self._copies.setdefault(keys[index], {})[block_ids[index]] = None
        self._num_copies += len(copies)
        return copies

    def _remove_copies(self, block_ids: Sequence[int]) -> list[int]:
        """Unpublish the blocks whose key has copies, and return the others, for which no copy is left."""
        alone = []
        for block_id in block_ids:
            key = self.key_of[block_id]
            copies = self._copies.get(key) if key is not None else None
            if key is None or copies is None:
                alone.append(block_id)
                continue
            leaving = block_id
            if self._first[key] == block_id:
                leaving = self._first[key] = next(iter(copies))
                self.num_forgotten += 1
            del copies[leaving]
            if not copies:
                del self._copies[key]
            self._num_copies -= 1
            self.key_of[block_id] = None
        return alone
