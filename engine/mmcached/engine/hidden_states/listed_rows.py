"""Number of rows per block and key in rank 0's store, as last reported.

    block_hash -> key -> rows from the block's beginning on, 1 … block_size          oldest report first

Invariant: at most `max_blocks` blocks; a later report of a block replaces the former.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice, takewhile

from mmcached.cache.hashing.block_hash import DIGEST_BYTES
from mmcached.wire.errors import InvariantError, RemoteProtocolError

Report = Mapping[bytes, Mapping[str, int]]
"""Block hash -> key -> rows from the block's beginning on; {} if the block was evicted."""

_NONE: Mapping[str, int] = {}
_NO_HASHES: frozenset[bytes] = frozenset()


class ListedRows:
    """Numbers of rows by block hash and key.

    Beyond `max_blocks` blocks, those with the oldest reports are dropped and counted in `num_dropped`.
    """

    def __init__(self, block_size: int, max_blocks: int) -> None:
        self.num_dropped = 0
        self._block_size = block_size
        self._max_blocks = max_blocks
        self.rows: dict[bytes, Mapping[str, int]] = {}
        self._full: dict[str, set[bytes]] = {}  # by key, the blocks that have all rows

    def __len__(self) -> int:
        return len(self.rows)

    def num_rows(self, block_hash: bytes, key: str) -> int:
        return self.rows.get(block_hash, _NONE).get(key, 0)

    def num_full(self, block_hashes: Sequence[bytes], key: str, num_blocks: int) -> int:
        """Return the number of leading blocks, of `num_blocks`, that have all rows of a key."""
        full = self._full.get(key, _NO_HASHES)
        return sum(1 for _ in takewhile(full.__contains__, islice(block_hashes, num_blocks)))

    def check(self, report: Report) -> None:
        """Raise `RemoteProtocolError` for an invalid block hash, or for more rows than a block has."""
        if not isinstance(report, Mapping):
            raise RemoteProtocolError(f"{type(report).__name__} instead of rows by block hash", "report")
        for block_hash, rows in report.items():
            if not isinstance(block_hash, bytes) or len(block_hash) != DIGEST_BYTES:
                raise RemoteProtocolError(f"{block_hash!r:.80} is not a hash of {DIGEST_BYTES} bytes", "report")
            if not isinstance(rows, Mapping) or not all(
                isinstance(key, str) and type(num) is int and 0 <= num <= self._block_size for key, num in rows.items()
            ):
                raise RemoteProtocolError(f"{rows!r:.80}: numbers of rows by key, 0 … {self._block_size}", "report")

    def apply_report(self, report: Report) -> None:
        """Apply a report that was checked."""
        for block_hash, rows in report.items():
            self._set(block_hash, rows)

    def apply_losses(self, report: Report) -> None:
        """Apply only the losses in a report that was checked."""
        for block_hash, rows in report.items():
            if block_hash in self.rows:
                self._set(block_hash, {key: min(num, rows.get(key, 0)) for key, num in self.rows[block_hash].items()})

    def cut_rows(self, block_hash: bytes, key: str, num_rows: int) -> None:
        if self.num_rows(block_hash, key) > num_rows:
            self._set(block_hash, {**self.rows[block_hash], key: num_rows})

    def clear(self) -> None:
        self.rows.clear()
        self._full.clear()

    def check_integrity(self) -> None:
        if len(self.rows) > self._max_blocks:
            raise InvariantError(f"{len(self.rows)} blocks are listed, at most {self._max_blocks} allowed")
        for block_hash, rows in self.rows.items():
            if not rows or not all(0 < num <= self._block_size for num in rows.values()):
                raise InvariantError(f"block {block_hash.hex()} is listed with {dict(rows)} rows of {self._block_size}")

        for key, full in self._full.items():
            listed = {block_hash for block_hash, rows in self.rows.items() if rows.get(key, 0) == self._block_size}
            if full != listed:
                raise InvariantError(f"{len(full ^ listed)} blocks are full of {key!r} in only one of two tables")

    def _set(self, block_hash: bytes, rows: Mapping[str, int]) -> None:
        self._forget(block_hash)
        present = {key: num for key, num in rows.items() if num}
        if not present:
            return
        self.rows[block_hash] = present
        for key, num in present.items():
            if num == self._block_size:
                self._full.setdefault(key, set()).add(block_hash)
        if len(self.rows) > self._max_blocks:
            self._forget(next(iter(self.rows)))
            self.num_dropped += 1

    def _forget(self, block_hash: bytes) -> None:
        for key in self.rows.pop(block_hash, ()):
            self._full.get(key, set()).discard(block_hash)
