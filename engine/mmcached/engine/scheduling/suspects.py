"""Suspects: requests of a step that failed or killed a worker, computed alone until they have passed that point.

    step of A, B, C dies --> A | others | B | others | C | A ...       every second step is for the other requests
                             A dies again, alone: it is to blame; B and C pass, and rejoin the others

A fault that needs two of them together clears both, each time at a later token; after too many faults a request is
computed alone for good, so that it ends. Invariant: exactly the suspects have an `alone_until`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from mmcached.engine.scheduling.request_queue import RequestQueue
from mmcached.engine.steps.request import Request
from mmcached.wire.errors import MmcachedError, PoisonousRequest

MAX_PROGRESS = 1 << 62
"""Value of `alone_until` for a request that is always computed alone."""

_NO_SUSPECT: Sequence[None] = (None,)


class Suspects:
    """The suspects of one engine, in the order of their turns.

    Args:
        max_deaths: Number of faults from which on a request that was computed alone fails.
    """

    def __init__(self, max_deaths: int) -> None:
        self._max_deaths = max_deaths
        self._requests: deque[Request] = deque()
        self._are_others_next = False

    def __len__(self) -> int:
        return len(self._requests)

    def sentence(self, request: Request) -> PoisonousRequest | None:
        """Return the error of a request that was alone in a step that killed a worker; None if it may try again."""
        is_poisonous = request.num_faults >= self._max_deaths
        return PoisonousRequest(request.num_faults, self._max_deaths) if is_poisonous else None

    def blame(
        self, goals: Sequence[tuple[Request, int]], sentence: Callable[[Request], MmcachedError | None] | None
    ) -> MmcachedError | None:
        """Count a fault of each request of a failed step, and make it a suspect up to its goal.

        Args:
            sentence: Judges the request of a step that had only one; None for a step of several.

        Returns:
            The error of that request, which is no suspect then; None if all are suspects.
        """
        for request, goal in goals:
            request.num_faults += 1
            error = None if sentence is None else sentence(request)
            if error is not None:
                return error
            self.add(request, goal)
        return None

    def add(self, request: Request, alone_until: int) -> None:
        """Make a request a suspect up to this progress, or for good if it has had too many faults."""
        if not request.alone_until:
            self._requests.append(request)
        request.alone_until = MAX_PROGRESS if request.num_faults > self._max_deaths else alone_until

    def discard(self, request: Request) -> None:
        if request.alone_until:
            request.alone_until = 0
            self._requests.remove(request)

    def discard_cleared(self) -> None:
        if not self._requests:
            return
        for request in list(self._requests):
            if request.progress >= request.alone_until:
                self.discard(request)

    def turns(self) -> Sequence[Request | None]:
        """Return the candidates for the next step, in order: a suspect alone, or (None) all other requests."""
        if not self._requests:
            return _NO_SUSPECT
        return [None, *self._requests] if self._are_others_next else [*self._requests, None]

    def note_turn(self, alone: Request | None) -> None:
        """Record which candidate got a step: after a suspect, the other requests come first."""
        self._are_others_next = alone is not None
        if alone is not None:
            self._requests.remove(alone)
            self._requests.append(alone)

    def taking_part(self, queue: RequestQueue, alone: Request | None) -> list[Request]:
        if alone is not None:
            return [alone] if alone in queue else []
        if not self._requests:
            return list(queue)
        return [request for request in queue if not request.alone_until]
