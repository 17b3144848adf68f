"""Chooses which of several engines gets a request.

    round_robin     the next one
    least_loaded    the one with the fewest prompt tokens to compute for the requests that it has
    cache_aware     the one with the fewest, when those of this request that its caches do not save are among them, and
                    a few for each request that it has

The few are what a request's next steps cost the others. Without them an engine that has stopped would get, for as long
as it counts as there, every request whose prompt it has cached.

Where several are equal, the one with the fewest requests; of these, the next one.

Knows nothing of sockets, requests or clocks, so a benchmark routes with it too.

>>> router = Router("least_loaded")
>>> [router.choose([Candidate(0, num_waiting), Candidate(1, 200)]).index for num_waiting in (0, 300, 200)]
[0, 1, 0]
>>> router.pass_turn(0)
>>> router.choose([Candidate(0, 200), Candidate(1, 200)]).index
1
>>> router = Router("cache_aware")
>>> router.choose([Candidate(0, 0, num_uncached=900), Candidate(1, 500, num_uncached=200)]).index
1
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

RoutingPolicy = Literal["cache_aware", "least_loaded", "round_robin"]

TOKENS_PER_REQUEST = 16


@dataclass(frozen=True, slots=True)
class Candidate:
    """One engine, as a request sees it.

    Attributes:
        num_waiting: prompt tokens that it has still to compute for others.
        num_open: requests that it has.
        num_uncached: tokens and embeddings that it would have to compute for this one.
    """

    index: int
    num_waiting: int = 0
    num_open: int = 0
    num_uncached: int = 0


_COSTS: Mapping[RoutingPolicy, Callable[[Candidate], tuple[int, ...]]] = {
    "round_robin": lambda candidate: (),
    "least_loaded": lambda candidate: (candidate.num_waiting, candidate.num_open),
    "cache_aware": lambda candidate: (
        candidate.num_waiting + candidate.num_uncached + TOKENS_PER_REQUEST * candidate.num_open,
        candidate.num_open,
    ),
}


class Router:
    """One policy, and whose turn it is."""

    def __init__(self, policy: RoutingPolicy) -> None:
        self._cost = _COSTS[policy]
        self._last = -1

    def choose(self, candidates: Sequence[Candidate]) -> Candidate:
        """Return one of at least one engine. Changes nothing: the request may have to wait."""
        num_turns = 1 + max(candidate.index for candidate in candidates)

        def key(candidate: Candidate) -> tuple[int, ...]:
            return (*self._cost(candidate), (candidate.index - self._last - 1) % num_turns)

        return min(candidates, key=key)

    def pass_turn(self, index: int) -> None:
        """Take note that an engine has been sent a request."""
        self._last = index
