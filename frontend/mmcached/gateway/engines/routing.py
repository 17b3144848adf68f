"""Chooses which of several engines gets a request.

    round_robin     the next one
    least_loaded    fewest prompt tokens still to compute for its requests
    cache_aware     fewest tokens to compute, including this request's uncached ones, and `TOKENS_PER_REQUEST` for each
                    of its requests

`TOKENS_PER_REQUEST` stands for what a request's next steps cost the others. Without it, an engine that has stopped
would get, until it is lost, every request whose prompt it has cached. Ties go to the engine with the fewest requests,
then to the next one in turn.

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
    """One engine, as seen by a request.

    Attributes:
        num_waiting: Prompt tokens still to compute for its requests.
        num_open: Its requests.
        num_uncached: Tokens and embeddings of this request that it would have to compute.
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
    """A routing policy with the engine that was chosen last."""

    def __init__(self, policy: RoutingPolicy) -> None:
        self._cost = _COSTS[policy]
        self._last = -1

    def choose(self, candidates: Sequence[Candidate]) -> Candidate:
        """Return one of at least one candidate. Changes nothing: the request may have to wait."""
        num_turns = 1 + max(candidate.index for candidate in candidates)

        def key(candidate: Candidate) -> tuple[int, ...]:
            return (*self._cost(candidate), (candidate.index - self._last - 1) % num_turns)

        return min(candidates, key=key)

    def pass_turn(self, index: int) -> None:
        """Record that an engine has been sent a request."""
        self._last = index
