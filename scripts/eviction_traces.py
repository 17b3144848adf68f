"""Requests to compare eviction policies with: which object is asked for next, and how large each is.

    zipf             independent requests, the k-th object with weight 1/k
    hot_scan_loop    phases of 20–60 requests: half of them for a hot set (5 % of the objects), a quarter go on with a
                     scan that comes back after thousands of requests, a quarter with a loop over 15 %, which is more
                     than a ring of 10 % holds
    prefix_blocks    a recorded service: the block ids of its prompts in order, from a file in the Mooncake format

No public trace says how large multimodal items are and how they come back; so all sizes are drawn, log-uniform from
64 KiB to 48 MiB, and independent of the popularity.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

KIB, MIB = 1 << 10, 1 << 20
ALIGNMENT = 64
NUM_OBJECTS = 2000
NUM_REQUESTS = 20_000


@dataclass(frozen=True, slots=True)
class Trace:
    """Which objects are asked for.

    Attributes:
        keys: `(num_requests,)`, each an index into `sizes`.
        sizes: `(num_objects,)` bytes, multiples of the alignment.
    """

    keys: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]

    @property
    def ring_bytes(self) -> int:
        """A tenth of all objects."""
        return int(self.sizes.sum()) // 10 // ALIGNMENT * ALIGNMENT


def draw_sizes(rng: np.random.Generator, num_objects: int) -> npt.NDArray[np.int64]:
    sizes = np.exp(rng.uniform(np.log(64 * KIB), np.log(48 * MIB), num_objects))
    return sizes.astype(np.int64) // ALIGNMENT * ALIGNMENT


def zipf(seed: int) -> Trace:
    rng = np.random.default_rng(seed)
    sizes = draw_sizes(rng, NUM_OBJECTS)
    weights = 1 / np.arange(1, NUM_OBJECTS + 1)
    return Trace(rng.choice(NUM_OBJECTS, NUM_REQUESTS, p=weights / weights.sum()), sizes)


def hot_scan_loop(seed: int) -> Trace:
    rng = np.random.default_rng(seed)
    sizes = draw_sizes(rng, NUM_OBJECTS)
    hot, loop, scan = np.split(np.arange(NUM_OBJECTS), [NUM_OBJECTS // 20, NUM_OBJECTS // 5])
    position = {"loop": 0, "scan": 0}
    phases = list[npt.NDArray[np.int64]]()
    while sum(map(len, phases)) < NUM_REQUESTS:
        phase = rng.choice(["hot", "loop", "scan"], p=[0.5, 0.25, 0.25])
        length = int(rng.integers(20, 60))
        if phase == "hot":
            phases.append(rng.choice(hot, length))
            continue
        begin = position[phase]
        position[phase] += length
        phases.append(np.take(loop if phase == "loop" else scan, range(begin, begin + length), mode="wrap"))
    return Trace(np.concatenate(phases)[:NUM_REQUESTS], sizes)


def prefix_blocks(path: Path, seed: int, *, num_requests: int) -> Trace:
    """Read the first `num_requests` block ids; sizes are drawn."""
    with path.open(encoding="utf-8") as lines:
        ids = list(chain.from_iterable(json.loads(line)["hash_ids"] for line in lines))[:num_requests]
    _, keys = np.unique(np.array(ids, np.int64), return_inverse=True)
    rng = np.random.default_rng(seed)
    return Trace(keys.astype(np.int64), draw_sizes(rng, int(keys.max()) + 1))
