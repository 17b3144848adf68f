"""Limits a KV hit to the tokens for which no wanted row is missing.

    rows wanted from       |--delivered--|------------- wanted -------------
    KV hit                 |-----------------------------------|
    rows in the store      |-------------------------|               usable: up to the end of the stored rows
    rows in the store      |-----|                                   usable: up to the first wanted row

Rows before `Request.num_rows_delivered` are not wanted: of an earlier turn, or from before a preemption.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.engine.hidden_states.tensor_prefix_index import NO_NEW_HASHES, NewBlockHashes, TensorPrefixIndex
from mmcached.engine.steps.request import Request


class KeptRows:
    """Prefix index for the `keys` whose rows rank 0 stores; empty without a store."""

    def __init__(self, index: TensorPrefixIndex, keys: Sequence[str]) -> None:
        self.index = index
        self._keys = keys

    def usable_prefix(self, request: Request, num_kv_hit_tokens: int) -> int:
        """Return the leading tokens of a KV hit for which no wanted row is missing. Changes nothing."""
        if not num_kv_hit_tokens or request.rows is None:
            return num_kv_hit_tokens
        num_unwanted = min(request.num_rows_delivered, num_kv_hit_tokens)
        if num_unwanted == num_kv_hit_tokens or not self._keys:
            return num_unwanted
        return max(num_unwanted, self.index.usable_prefix(request, num_kv_hit_tokens, request.row_keys))

    def reserve(self, request: Request, start: int, num_tokens: int) -> NewBlockHashes:
        """Reserve the rows of a chunk, after its slots; return the block hashes that the store does not have yet."""
        if not self._keys:
            return NO_NEW_HASHES
        needed = request.row_keys if request.num_rows_delivered < start else ()
        return self.index.reserve(request, start, num_tokens, written=self._keys, needed=needed)

    def take_released(self) -> list[int]:
        return self.index.take_released()
