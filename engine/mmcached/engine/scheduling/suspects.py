"""A suspect took part in a step that failed or killed a worker; it is computed alone until it has passed that place.

    step of A, B, C dies --> A | others | B | others | C | A ...       every second step is for those without suspicion
                             A dies again, alone: it is to blame; B and C pass, and take part with everybody again

A fault that only two of them make together clears both, but each time further on; after too many faults a request is
computed alone for good, so it ends. Knows nothing of why a step failed, or what becomes of the guilty. Invariant:
exactly the suspects have an `alone_until`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from mmcached.engine.scheduling.request_queue import RequestQueue
from mmcached.engine.steps.request import Request
from mmcached.wire.errors import InvariantError

MAX_PROGRESS = 1 << 62
"""As `alone_until`: for good."""

_EVERYBODY: Sequence[None] = (None,)


class Suspects:
    """The suspects of one scheduler, in the order of their turns."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()
        self._are_others_next = False

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request, alone_until: int) -> None:
        """Compute a request alone until its progress is `alone_until`."""
        if not request.alone_until:
            self._requests.append(request)
        request.alone_until = alone_until

    def discard(self, request: Request) -> None:
        """Suspect a request no more; one that is not suspected changes nothing."""
        if request.alone_until:
            request.alone_until = 0
            self._requests.remove(request)

    def clear_the_innocent(self) -> None:
        """Discard the suspects that have passed their place."""
        if not self._requests:
            return
        for request in list(self._requests):
            if request.progress >= request.alone_until:
                self.discard(request)

    def turns(self) -> Sequence[Request | None]:
        """Return the candidates for the next step, in order: a suspect alone, or (None) all others."""
        if not self._requests:
            return _EVERYBODY
        return [None, *self._requests] if self._are_others_next else [*self._requests, None]

    def took_turn(self, alone: Request | None) -> None:
        """Note a candidate's step: after a suspect's, the others come first."""
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
