"""KV pool: keys and values of computed tokens, by slot. Block 0 is the null block, never written, all zeros.

    data (num_layers, 2, num_blocks, block_size, hidden_size) of `dtype`   slot = block_id * block_size + offset
          layer       K,V   └──────── flat: one row per slot ───────┘
    computed (num_blocks * block_size,) bool       slots that a step has computed and that were not withdrawn

Invariant: a row is read only if its slot is computed; `check_computed` detects contexts for which the engine's tables
are wrong. Rows of other slots hold finite numbers, so that a masked row contributes exactly 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from mmcached.wire.errors import InvariantError


@dataclass(frozen=True, slots=True)
class KVPoolStats:
    slots_computed: int
    nbytes: int


class KVPool:
    """Pool allocated at once; the system maps the zero pages when they are first written."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        hidden_size: int,
        device: torch.device,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        shape = (num_layers, 2, num_blocks, block_size, hidden_size)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._data = _zeros(shape, dtype, device)
        self._flat = self._data.view(num_layers, 2, num_blocks * block_size, hidden_size)
        self._computed = torch.zeros(num_blocks * block_size, dtype=torch.bool)

    def write(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store `(n, hidden_size)` keys and values of one layer in `slots`, `(n,)` int64 on the pool's device."""
        self._flat[layer, 0].index_copy_(0, slots, keys)
        self._flat[layer, 1].index_copy_(0, slots, values)

    def gather(self, layer: int, block_table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return copies of keys and values of whole blocks, each `(batch, blocks * block_size, hidden_size)`.

        `block_table` is `(batch, blocks)` int64 on the pool's device, padded with the null block.
        """
        batch, blocks = block_table.shape
        rows = self._data[layer].index_select(1, block_table.reshape(-1))
        keys, values = rows.view(2, batch, blocks * self.block_size, -1)
        return keys, values

    def mark_computed(self, slots: torch.Tensor) -> None:
        """Mark `slots` (`(n,)` int64 on the CPU) as computed, just before the running step writes all their layers."""
        self._computed[slots] = True

    def forget_slots(self, slots: torch.Tensor) -> None:
        self._computed[slots] = False

    def check_computed(self, slots: torch.Tensor) -> None:
        """Raise `InvariantError` if a slot of a context was not computed: the engine's tables and the pool disagree."""
        computed = self._computed[slots]
        if not bool(computed.all()):
            position = int((~computed).nonzero()[0])
            raise InvariantError(
                f"KV of position {position} (slot {int(slots[position])}) was never computed here",
                position=position,
                slot=int(slots[position]),
            )

    def clear(self) -> None:
        self._computed.zero_()

    def stats(self) -> KVPoolStats:
        return KVPoolStats(int(self._computed.sum()), self._data.nbytes)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return zeros; on the CPU without writing them, unlike `torch.zeros`, which maps every page at once."""
    if device.type == "cpu":
        return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)
    return torch.zeros(shape, dtype=dtype, device=device)
