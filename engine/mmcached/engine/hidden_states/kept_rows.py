"""Kept rows limit a KV hit to the tokens behind which a request lacks no row that it wants.

    rows wanted from       |--delivered--|------------- wanted -------------
    KV hit                 |-----------------------------------|
    rows in the store      |-------------------------|               usable: as far as the store goes
    rows in the store      |-----|                                   usable: as far as nothing is wanted

Rows before `Request.num_rows_delivered` are not wanted: of an earlier turn, or brought before the request was set back.
So without a store too, whoever wants nothing of its prefix can use all of its hit.

Knows nothing of blocks or budgets. Invariant: what is computed behind a hit lacks no row that is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.engine.hidden_states.tensor_prefix_index import NOTHING_TO_TELL, BlockNames, TensorPrefixIndex
from mmcached.engine.steps.request import Request


class KeptRows:
    """The prefix index, for the keys of which rows are kept.

    Args:
        keys: of which the model gives rows and rank 0 keeps them; none: there is no store.
    """

    def __init__(self, index: TensorPrefixIndex, keys: Sequence[str]) -> None:
        self.index = index
        self._keys = keys

    def usable_prefix(self, request: Request, num_kv_hit_tokens: int) -> int:
        """Return for how many tokens of a KV hit a request lacks no row that it wants. Changes nothing."""
        if not num_kv_hit_tokens or request.rows is None:
            return num_kv_hit_tokens
        num_unwanted = min(request.num_rows_delivered, num_kv_hit_tokens)
        if num_unwanted == num_kv_hit_tokens or not self._keys:
            return num_unwanted
        return max(num_unwanted, self.index.usable_prefix(request, num_kv_hit_tokens, request.row_keys))

    def reserve(self, request: Request, start: int, num_tokens: int) -> BlockNames:
        """Reserve the rows of a chunk, after its slots; return what the store must be told with it."""
        if not self._keys:
            return NOTHING_TO_TELL
        needed = request.row_keys if request.num_rows_delivered < start else ()
        return self.index.reserve(request, start, num_tokens, written=self._keys, needed=needed)

    def take_released(self) -> list[int]:
        """Return the requests whose rows need not be held any more, for the plan of the step being built."""
        return self.index.take_released()
