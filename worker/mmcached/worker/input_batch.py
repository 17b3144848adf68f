"""What a prefix cache must know of a step's requests; an engine's own batch object is copied into this.

Knows nothing of tensors to be cached. Packed rows of the step stand in the order of `req_ids`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from mmcached.wire.errors import InvalidRequest


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

    def num_computed(self, req_id: str) -> int:
        return int(self.num_computed_tokens_cpu[self.req_id_to_index[req_id]])

    def slots(self, req_id: str, first_position: int, end: int, block_size: int) -> torch.Tensor:
        """Return the slots of positions `[first_position, end)` of a request, int64.

        Raises:
            InvalidRequest: the block table does not reach so far.
        """
        table = self.block_table[self.req_id_to_index[req_id]]
        if end > len(table) * block_size:
            limit = f"the block table of {req_id} has {len(table) * block_size}"
            raise InvalidRequest("positions", end, limit)
        positions = torch.arange(first_position, end)
        return table.to(torch.int64)[positions // block_size] * block_size + positions % block_size
