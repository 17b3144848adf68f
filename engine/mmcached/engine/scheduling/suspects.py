"""Suspects: requests of a step that failed or killed a worker, computed alone until they have passed that point.

    step of A, B, C dies --> A | others | B | others | C | A ...       every second step is for the other requests
                             A dies again, alone: it is to blame; B and C pass, and rejoin the others

A fault that needs two of them together clears both, each time at a later token; after too many faults a request is
computed alone for good, so that it ends. Invariant: exactly the suspects have an `alone_until`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from mmcached.engine.scheduling.request_queue import RequestQueue
from mmcached.engine.steps.request import Request
from mmcached.wire.errors import InvariantError

MAX_PROGRESS = 1 << 62
"""Value of `alone_until` for a request that is always computed alone."""

_NO_SUSPECT: Sequence[None] = (None,)


class Suspects:
    def __init__(self) -> None:
        self._requests: deque[Request] = deque()
        self._are_others_next = False

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request, alone_until: int) -> None:
        if not request.alone_until:
            self._requests.append(request)
        request.alone_until = alone_until

    def discard(self, request: Request) -> None:
        if request.alone_until:
            request.alone_until = 0
            self._requests.remove(request)

    def discard_cleared(self) -> None:
        """Discard the suspects that have reached their `alone_until`."""
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
        """Return the requests of a queue that may take part in the candidate's step."""
        if alone is not None:
            return [alone] if alone in queue else []
        if not self._requests:
            return list(queue)
        return [request for request in queue if not request.alone_until]

    def check_integrity(self, unfinished: Iterable[Request]) -> None:
        alone = {request.request_id for request in unfinished if request.alone_until}
        if alone != {request.request_id for request in self._requests}:
            raise InvariantError(f"requests {sorted(alone)} are computed alone, suspects are {list(self._requests)}")
