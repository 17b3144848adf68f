"""How rows get into the store: whose are deferred, how long copies take, and how much may be under way or wait.

Whatever the journey, what is found must be the same.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from mmcached.worker.prefix_store import CopyPolicy, KeySpec, TensorPrefixStore
from mmcached.worker.prefix_store.transfer import TransferFor, transfer_for
from tests.worker.prefix_store.delayed_transfer import delayed

LARGE = 1 << 20


class MakeStore(Protocol):
    def __call__(
        self,
        block_size: int,
        schema: Sequence[KeySpec],
        *,
        byte_budget: int,
        staged_byte_limit: int,
        device_byte_budget: int,
        transfer_for: TransferFor,
    ) -> TensorPrefixStore: ...


class Journey(NamedTuple):
    """Attributes:
    deferred: how many of three keys.
    polls: how often a copy is asked in vain, at most; None: as the product does it for the CPU.
    staged_byte_limit, device_byte_budget: of the store.
    seed: of what is drawn for each copy.
    device: that the rows are handed in on.
    """

    deferred: int = 0
    polls: int | None = None
    staged_byte_limit: int = LARGE
    device_byte_budget: int = LARGE
    seed: int = 0
    device: str = "cpu"

    def policy_of(self, key: str) -> CopyPolicy:
        return "deferred" if int(key[1:]) % 3 < self.deferred else "at_once"

    def make(self, make: MakeStore, block_size: int, schema: Sequence[KeySpec], byte_budget: int) -> TensorPrefixStore:
        return make(
            block_size,
            schema,
            byte_budget=byte_budget,
            staged_byte_limit=self.staged_byte_limit,
            device_byte_budget=self.device_byte_budget,
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
    return Journey(
        deferred=rng.randint(0, 3),
        polls=rng.choice([None, 0, 1, 2, 3, 12, 40]),
        staged_byte_limit=rng.choice([0, 200, LARGE]),
        device_byte_budget=rng.choice([0, 200, LARGE, LARGE]),
        seed=seed,
    )
