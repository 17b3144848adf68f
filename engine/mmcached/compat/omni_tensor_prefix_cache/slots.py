"""KV slots: checks a step's slot mapping, and converts positions to slots.

    slot = block_id * block_size + offset

Knows nothing of rows.
"""

from __future__ import annotations

import numpy as np
import torch

from mmcached.compat.omni_tensor_prefix_cache.engine_batch import EngineBatch
from mmcached.wire.errors import InvalidRequest

_INTEGERS = (torch.int64, torch.int32)
_UNSIGNED = 1 << 64


class SlotChecker:
    """Checks slot mappings against the number of slots."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._scratch = np.empty(num_slots, dtype=np.int64)

    def check(self, slot_mapping: torch.Tensor, num_rows: int | None = None) -> np.ndarray:
        """Return the first `num_rows` slots, or all, as int64, after checking that each exists and none occurs twice.

        Raises:
            InvalidRequest: Names the slot, or the type of the mapping, and the limit.
        """
        if (
            not isinstance(slot_mapping, torch.Tensor)
            or slot_mapping.ndim != 1
            or slot_mapping.dtype not in _INTEGERS
            or not slot_mapping.is_cpu
        ):
            raise InvalidRequest("slot_mapping", _looks(slot_mapping), "must be a 1-D int64 or int32 tensor on the CPU")
        if num_rows is None:
            num_rows = slot_mapping.shape[0]
        elif not 0 <= num_rows <= slot_mapping.shape[0]:
            limit = f"must name a slot for each of {num_rows} tokens"
            raise InvalidRequest("slot_mapping", slot_mapping.shape[0], limit)
        slots: np.ndarray = slot_mapping.numpy()[:num_rows].astype(np.int64)  # a copy: the engine reuses its buffer
        # One row, of a request that decodes, is spared the reduction, which takes longer than all the rest.
        # Taken as unsigned numbers, negative ones are the largest.
        largest = slots.item() % _UNSIGNED if num_rows == 1 else slots.view(np.uint64).max(initial=0)
        if largest >= self.num_slots:
            wrong = slots[(slots < 0) | (slots >= self.num_slots)]
            raise InvalidRequest("slot_mapping", int(wrong[0]), f"must lie in 0 … {self.num_slots - 1}")
        if num_rows > 1:
            # Of rows with one slot only the last leaves its number there.
            numbers = np.arange(num_rows)
            self._scratch[slots] = numbers
            is_last = self._scratch[slots] == numbers
            if not is_last.all():
                twice = int(slots[int(is_last.argmin())])
                raise InvalidRequest("slot_mapping", twice, "must name each slot once")
        return slots


class BlockTable:
    """Block tables of a batch's requests, from the first KV group.

    Attributes:
        num_kv_groups: Number of KV groups of the batch.

    Raises:
        InvalidRequest: The batch has no table, or one of another form than `engine_batch` describes.
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
            InvalidRequest: The block table is too short, or names a block that does not exist.
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


def _looks(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{value.dtype} {tuple(value.shape)} on {value.device}"
