"""Draws a store in use, and clips whose outputs nobody asks for again.

90 % of the store are its own: half of these records an encoder's, of 1 to 20 MiB, half small ones; each is asked for
five times. A clip is 461 MB, in slices, each with a record of what it is called. What counts is what its own records
come to: while clips come, four requests with each slice; or asked for after them, in which time nobody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from scripts.studies.policies import Policy
from scripts.studies.traces import ALIGNMENT, KIB, MIB

NUM_CLIPS = (1, 5, 20)
SLICE_BYTES = {16: 28_800_000, 64: 7_200_000}
NAME_BYTES = 256
NUM_ROUNDS = 5
OWN_SHARE = 0.9
OWN_REQUESTS = 4


def hit_rate(
    policy: Callable[[int], Policy], store_bytes: int, slices: tuple[int, int], is_asked: bool, *, seed: int
) -> float:
    """Return the hit rate of the store's own records, in percent.

    Args:
        policy: makes a cache of so many bytes.
        slices: how many come, and how many bytes each has.
        is_asked: for them, while clips come.
    """
    cache, rng = policy(store_bytes), np.random.default_rng(seed)
    sizes = list(_own_sizes(rng, int(OWN_SHARE * store_bytes)))

    def ask(keys: list[int]) -> list[bool]:
        return [cache.request(key, sizes[key]) for key in keys]

    for _ in range(NUM_ROUNDS):
        ask(rng.permutation(len(sizes)).tolist())
    hits = []
    for index in range(slices[0]):
        cache.request(("slice", index), slices[1])
        cache.request(("name", index), NAME_BYTES)
        if is_asked:
            hits += ask(rng.integers(len(sizes), size=OWN_REQUESTS).tolist())
    return 100 * float(np.mean(hits if is_asked else ask(rng.permutation(len(sizes)).tolist())))


def _own_sizes(rng: np.random.Generator, num_bytes: int) -> Iterator[int]:
    while num_bytes > 0:
        low, high = (MIB, 20 * MIB) if rng.random() < 0.5 else (KIB, 64 * KIB)
        size = int(np.exp(rng.uniform(np.log(low), np.log(high)))) // ALIGNMENT * ALIGNMENT
        num_bytes -= size
        yield size
