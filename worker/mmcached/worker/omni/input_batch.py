"""What the cache must know of a step's requests: `InputBatch`, or an engine's own batch object, read into `Step`.

Knows nothing of tensors to be cached. Of an engine's batch it takes what vLLM's has:

    req_ids                      the order of all results
    req_id_to_index              row in everything below
    num_computed_tokens_cpu      tokens computed BEFORE the step: list, array or tensor of whole numbers
    block_table                  (rows, max_blocks) block ids on the CPU, array or tensor; or one such table for each KV
                                 group, of which the first counts: block_table.block_tables,
                                 block_table[0].block_table.cpu
    query_start_loc              first packed row of each request: list, array or tensor
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch

from mmcached.wire.errors import InvalidRequest

Starts = Sequence[int] | np.ndarray | torch.Tensor


class EngineBatch(Protocol):
    """A batch object, an engine's own or `InputBatch`."""

    @property
    def req_ids(self) -> Sequence[str]: ...
    @property
    def req_id_to_index(self) -> Mapping[str, int]: ...
    @property
    def num_computed_tokens_cpu(self) -> Any: ...
    @property
    def block_table(self) -> Any: ...


@dataclass(slots=True)
class InputBatch:
    """The requests of one step.

    Attributes:
        req_ids: in packed order.
        req_id_to_index: row in `num_computed_tokens_cpu`, `block_table` and `query_start_loc`.
        num_computed_tokens_cpu: tokens computed **before** this step, one number per row.
        block_table: `(rows, max_blocks)` integers on the CPU: block ids of each request from position 0 on.
    """

    req_ids: Sequence[str]
    req_id_to_index: Mapping[str, int]
    num_computed_tokens_cpu: Sequence[int] | torch.Tensor
    block_table: torch.Tensor


class BlockTable:
    """Positions of a batch's requests -> slots, by the first KV group.

    Attributes:
        num_kv_groups: of the batch.

    Raises:
        InvalidRequest: the batch has no table, or another one than said above.
    """

    def __init__(self, input_batch: EngineBatch, *, num_blocks: int, block_size: int) -> None:
        limit = "must be 2-D integers on the CPU, or a table of them for each KV group"
        try:
            table = input_batch.block_table
            self.num_kv_groups = len(getattr(table, "block_tables", (None,)))
            if not isinstance(table, torch.Tensor | np.ndarray):
                table = table[0].block_table.cpu
            self._indexes = input_batch.req_id_to_index
        except (AttributeError, TypeError, LookupError) as error:
            raise InvalidRequest("block_table", str(error), limit) from error
        if isinstance(table, torch.Tensor) and table.is_cpu:
            table = table.numpy()
        if not isinstance(table, np.ndarray) or table.ndim != 2 or table.dtype.kind not in "iu":
            raise InvalidRequest("block_table", str(type(table)), limit)
        self._table: np.ndarray = table
        self._num_blocks = num_blocks
        self._block_size = block_size

    def slots(self, req_id: str, first: int, end: int) -> np.ndarray:
        """Return the slots of positions `[first, end)` of a request, int64.

        Raises:
            InvalidRequest: the block table does not reach so far, or names a block that does not exist.
        """
        size, row = self._block_size, self._table[self._indexes[req_id]]
        if not 0 <= first <= end <= len(row) * size:
            raise InvalidRequest("positions", end, f"the block table of {req_id} has {len(row) * size}")
        if first == end:
            return np.empty(0, dtype=np.int64)
        blocks = row[first // size : -(-end // size)].astype(np.int64)
        if blocks.min() < 0 or blocks.max() >= self._num_blocks:
            wrong = blocks[(blocks < 0) | (blocks >= self._num_blocks)]
            limit = f"blocks of {req_id} must lie in 0 … {self._num_blocks - 1}"
            raise InvalidRequest("block_table", int(wrong[0]), limit)
        slots = (blocks[:, None] * size + np.arange(size)).reshape(-1)
        offset = first % size
        wanted: np.ndarray = slots[offset : offset + end - first]
        return wanted


class Step:
    """The packed rows of each request.

    Attributes:
        req_ids, starts, counts: of each request its first packed row, and how many.
        num_rows: what all of them need.
        is_packed: they follow each other from row 0 on.
    """

    __slots__ = ("counts", "is_packed", "num_rows", "req_ids", "starts")

    def __init__(self, query_start_loc: Starts, input_batch: EngineBatch, scheduled: Mapping[str, int]) -> None:
        try:
            as_list = (
                query_start_loc.tolist() if isinstance(query_start_loc, torch.Tensor | np.ndarray) else query_start_loc
            )
            indexes = input_batch.req_id_to_index
            self.req_ids = list(input_batch.req_ids)
            self.starts: list[int] = [as_list[indexes[req_id]] for req_id in self.req_ids]
            self.counts: list[int] = [scheduled[req_id] for req_id in self.req_ids]
            ends = list(accumulate(self.counts, initial=0))
            operator.index(sum(self.starts) + ends[-1])  # one float among them, and the sum is one
        except (KeyError, IndexError) as error:
            limit = "must have a row for every request of the batch"
            raise InvalidRequest("query_start_loc, num_scheduled_tokens", str(error), limit) from error
        except (AttributeError, TypeError) as error:
            limit = "must be integers by request; a batch has req_ids and req_id_to_index"
            raise InvalidRequest("query_start_loc, num_scheduled_tokens", str(error), limit) from error
        if self.req_ids and (min(self.starts) < 0 or min(self.counts) < 0):
            lowest = min(*self.starts, *self.counts)
            raise InvalidRequest("query_start_loc, num_scheduled_tokens", lowest, "must be at least 0")
        self.num_rows = ends.pop()
        self.is_packed = self.starts == ends
        if not self.is_packed:
            parts = zip(self.starts, self.counts, strict=True)
            self.num_rows = max((start + count for start, count in parts if count), default=0)

    def parts(self, rows: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return each request's part of `(num_rows, …)`: views."""
        if self.is_packed:
            return rows.split_with_sizes(self.counts)
        return [rows[start : start + count] for start, count in zip(self.starts, self.counts, strict=True)]


def num_computed(input_batch: EngineBatch, req_ids: Sequence[str]) -> list[int]:
    """Return of each request the tokens computed before the step.

    Raises:
        InvalidRequest: there is none, or it is no whole number.
    """
    if not req_ids:
        return []
    field, limit = "num_computed_tokens_cpu", "must be a whole number for every request of the batch"
    try:
        indexes = [input_batch.req_id_to_index[req_id] for req_id in req_ids]
        numbers = np.asarray(input_batch.num_computed_tokens_cpu)[indexes]
        as_integers = numbers.astype(np.int64)
    except (AttributeError, TypeError, ValueError, LookupError) as error:
        raise InvalidRequest(field, str(error), limit) from error
    if numbers.dtype.kind not in "iuf" or (numbers != as_integers).any():
        raise InvalidRequest(field, str(numbers.tolist()), limit)
    computed: list[int] = as_integers.tolist()
    return computed
