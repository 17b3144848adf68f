"""Plays requests through the first level of each host and one second level behind all, and counts in their second half.

A first level never asks what the second has: a miss brings the record in, found or encoded. So the first levels are
played once, and what they miss is played, in order of time, through second levels of several sizes.

The rules are LRU. The store's own rule may take its place (`StoreCache`); Redis and Valkey choose the oldest of a few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scripts.studies.policies import Lru, Policy
from scripts.studies.simulate_fleet.requests import Requests

GIB = 1 << 30
RECORD_BYTES = 2691 * 3584 * 2
"""The embeddings of a 1080p picture of Qwen2.5-VL-7B, as in docs/sizing.md: 18.4 MiB."""

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a fleet has found, counted in the second half of its requests.

    Attributes:
        second_gib: size of the second level; 0: none.
        asked: pictures.
        first: of them found in the first level of the host.
        second: of the others found in the second level.
        length_s: seconds in which they were asked for.
    """

    hosts: int
    second_gib: float
    asked: int
    first: int
    second: int
    length_s: float

    @property
    def encoded(self) -> int:
        return self.asked - self.first - self.second

    def share(self, count: int) -> float:
        """Return a count in percent of what was asked for."""
        return 100 * count / self.asked

    @property
    def bytes_per_s(self) -> float:
        """What the second level carries: records found, and records saved."""
        return (self.second + self.encoded) * RECORD_BYTES / self.length_s if self.second_gib else 0.0

    def encoder_s_an_hour(self, count: int, encode_s: float) -> float:
        """Return the seconds an hour that encoders of the whole fleet need for so many pictures."""
        return count * encode_s * 3600 / self.length_s


def play(
    requests: Requests, hosts: int, first_gib: float, second_gib: Sequence[float], rule: Callable[[int], Policy] = Lru
) -> list[Outcome]:
    """Return an outcome for each size of the second level."""
    is_found = first_level(requests, hosts, round(first_gib * GIB), rule)
    missed = np.flatnonzero(~is_found)
    half = len(is_found) // 2
    asked, first = len(is_found) - half, int(is_found[half:].sum())
    outcomes = []
    for gib in second_gib:
        found = missed[_found(Lru(round(gib * GIB)), requests.keys[missed])] if gib else missed[:0]
        second = int((found >= half).sum())
        outcomes.append(Outcome(hosts, gib, asked, first, second, requests.length_s * asked / len(is_found)))
    return outcomes


def first_level(requests: Requests, hosts: int, nbytes: int, rule: Callable[[int], Policy]) -> Flags:
    """Return, for each request, whether the host that is asked has it."""
    is_found = np.empty(len(requests.keys), np.bool_)
    order = np.argsort(requests.hosts, kind="stable")
    for of_host in np.split(order, np.searchsorted(requests.hosts[order], np.arange(1, hosts))):
        is_found[of_host] = _found(rule(nbytes), requests.keys[of_host])
    return is_found


def _found(cache: Policy, keys: npt.NDArray[np.int64]) -> Flags:
    return np.fromiter((cache.request(key, RECORD_BYTES) for key in keys.tolist()), np.bool_, len(keys))
