"""The ways of rows into the store: how long copies take, and how much may be under way.

Whatever the journey, what is found must be the same.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from mmcached.worker.hidden_states import KeySpec, TensorPrefixStore
from mmcached.worker.hidden_states.device_copy import TransferFor, transfer_for
from tests.worker.hidden_states.by_content.delayed_transfer import delayed

LARGE = 1 << 20


class Journey(NamedTuple):
    """Attributes:
    polls: how often a copy is asked in vain, at most; None: as the product does it for the CPU.
    staged_byte_limit: of the store.
    seed: of what is drawn for each copy.
    device: that the rows are handed in on.
    """

    polls: int | None = None
    staged_byte_limit: int = LARGE
    seed: int = 0
    device: str = "cpu"

    def make(self, block_size: int, schema: Sequence[KeySpec], byte_budget: int) -> TensorPrefixStore:
        return TensorPrefixStore(
            block_size,
            schema,
            byte_budget=byte_budget,
            staged_byte_limit=self.staged_byte_limit,
            transfer_for=self._transfer_for(),
        )

    def _transfer_for(self) -> TransferFor:
        if self.polls is None:
            return transfer_for
        rng, most = random.Random(self.seed), self.polls
        return delayed(lambda: rng.randint(0, most))


DIRECT = Journey()


def drawn(seed: int) -> Journey:
    rng = random.Random(seed)
    return Journey(rng.choice([None, 0, 1, 2, 3, 12, 40]), rng.choice([0, 200, LARGE]), seed)
