"""Listed rows count the rows of each block in rank 0's store, by key, as the last reports say and room allows.

    digest -> key -> rows from the block's beginning on, 1 … block_size          the report of longest ago first

Knows nothing of requests or steps. Invariant: at most `max_blocks`; nothing is listed that was reported otherwise
since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice, takewhile

from mmcached.engine.kv.hashing.block_hash import DIGEST_BYTES
from mmcached.wire.errors import InvariantError, RemoteProtocolError

Report = Mapping[bytes, Mapping[str, int]]
"""By digest: how many rows a block has from its beginning on, by key; {}: it is gone."""

_NONE: Mapping[str, int] = {}
_NO_DIGESTS: frozenset[bytes] = frozenset()


class ListedRows:
    """Numbers of rows by block hash and key.

    Args:
        max_blocks: where the store keeps more, those reported longest ago are dropped: not found, and no harm done.

    Attributes:
        rows: numbers of rows by block hash and key; only changed here.
        num_dropped: blocks, so far.
    """

    def __init__(self, block_size: int, max_blocks: int) -> None:
        self.num_dropped = 0
        self._block_size = block_size
        self._max_blocks = max_blocks
        self.rows: dict[bytes, Mapping[str, int]] = {}
        self._full: dict[str, set[bytes]] = {}  # by key, the blocks that have all rows

    def __len__(self) -> int:
        return len(self.rows)

    def num_rows(self, digest: bytes, key: str) -> int:
        """Return how many rows of a key a block has from its beginning on."""
        return self.rows.get(digest, _NONE).get(key, 0)

    def num_full(self, digests: Sequence[bytes], key: str, num_blocks: int) -> int:
        """Return how many of the first blocks of a sequence have all rows of a key, before one that has not."""
        full = self._full.get(key, _NO_DIGESTS)
        return sum(1 for _ in takewhile(full.__contains__, islice(digests, num_blocks)))

    def check(self, report: Report) -> None:
        """Return if a report can be.

        Raises:
            RemoteProtocolError: it names more rows than a block has, or no digest.
        """
        if not isinstance(report, Mapping):
            raise RemoteProtocolError(f"{type(report).__name__}, not rows by digest", "report")
        for digest, rows in report.items():
            if not isinstance(digest, bytes) or len(digest) != DIGEST_BYTES:
                raise RemoteProtocolError(f"{digest!r:.80} is no digest of {DIGEST_BYTES} bytes", "report")
            if not isinstance(rows, Mapping) or not all(
                isinstance(key, str) and type(num) is int and 0 <= num <= self._block_size for key, num in rows.items()
            ):
                raise RemoteProtocolError(f"{rows!r:.80} are no rows by key of a block of {self._block_size}", "report")

    def take(self, report: Report) -> None:
        """Believe a report that was checked."""
        for digest, rows in report.items():
            self._set(digest, rows)

    def take_losses(self, report: Report) -> None:
        """Believe what a report says is gone, and nothing that would be new."""
        for digest, rows in report.items():
            if digest in self.rows:
                self._set(digest, {key: min(num, rows.get(key, 0)) for key, num in self.rows[digest].items()})

    def cut(self, digest: bytes, key: str, num_rows: int) -> None:
        """List at most so many rows of a key."""
        if self.num_rows(digest, key) > num_rows:
            self._set(digest, {**self.rows[digest], key: num_rows})

    def clear(self) -> None:
        self.rows.clear()
        self._full.clear()

    def check_integrity(self) -> None:
        if len(self.rows) > self._max_blocks:
            raise InvariantError(f"{len(self.rows)} blocks are listed, {self._max_blocks} may be")
        for digest, rows in self.rows.items():
            if not rows or not all(0 < num <= self._block_size for num in rows.values()):
                raise InvariantError(f"block {digest.hex()} is listed with {dict(rows)} rows of {self._block_size}")

        for key, full in self._full.items():
            listed = {digest for digest, rows in self.rows.items() if rows.get(key, 0) == self._block_size}
            if full != listed:
                raise InvariantError(f"{len(full ^ listed)} blocks are full of {key!r} here and not there")

    def _set(self, digest: bytes, rows: Mapping[str, int]) -> None:
        self._forget(digest)
        present = {key: num for key, num in rows.items() if num}
        if not present:
            return
        self.rows[digest] = present
        for key, num in present.items():
            if num == self._block_size:
                self._full.setdefault(key, set()).add(digest)
        if len(self.rows) > self._max_blocks:
            self._forget(next(iter(self.rows)))
            self.num_dropped += 1

    def _forget(self, digest: bytes) -> None:
        for key in self.rows.pop(digest, ()):
            self._full.get(key, set()).discard(digest)
