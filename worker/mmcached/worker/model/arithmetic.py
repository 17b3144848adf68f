"""Exact integer arithmetic in float64, with weights that are equal on every device and rank.

Invariant: every tensor that a layer touches holds whole numbers, and every sum of products is at most `MAX_SUM` = 2^50.

Why sums are exact: float64 holds every whole number up to 2^53. All terms of a sum are whole and not negative (inputs
and weights are in [0, PRIME)), so each partial sum is at most the total, in any order, blocking or number of threads,
with or without fused multiply-add: no step of the sum is rounded. CUDA has no integer matrix products; these give the
same bits everywhere. (`lag` in the decoder may be negative; its absolute value has the same bound, and where it is
negative the weight is masked.)

Why `reduce_` is exact: for a whole number a, 0 <= a <= 2^50, and a modulus m:

    (a + 0.5) / m         lies at least 0.5 / m away from every whole number
    fl((a + 0.5) * fl(1/m))  differs from it by less than ((a + 0.5) / m) * 2^-51.9 < 0.5 / m
    so its floor is the true quotient, and a - m * quotient is a difference of whole numbers below 2^53.

This needs no division and no correction step, and unlike `fmod` does not depend on a library for its exactness.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import torch

PRIME = 4093
"""Modulus of every value in the model: the largest prime below 2^12."""
MAX_SUM = 1 << 50


def reduce_(values: torch.Tensor, modulus: int = PRIME) -> torch.Tensor:
    """Replace each whole number in `values` (float64, in [0, MAX_SUM]) by its remainder, in place, and return it."""
    quotient = (values + 0.5).mul_(1.0 / modulus).floor_()
    return values.sub_(quotient, alpha=modulus)


def draw(seed: int, name: str, shape: tuple[int, ...], *, bound: int = PRIME) -> torch.Tensor:
    """Return the weights called `name`: whole numbers in [0, bound), float64 on the CPU, from the arguments alone.

    Counter-based: entry i is a hash of (seed, name, i), independent of any generator's state or version.
    """
    key = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    count = int(np.prod(shape))
    mixed = _mix(np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.frombuffer(key, "<u8")[0])
    return torch.from_numpy((mixed >> np.uint64(20)) % np.uint64(bound)).to(torch.float64).reshape(shape)


def _mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply the finalizer of splitmix64 (public domain, S. Vigna) to an array; wraps modulo 2^64."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = words ^ (words >> np.uint64(31))
    return mixed
