"""Queue of requests in the order of service: by priority, then by arrival.

A preempted request keeps its arrival number. Invariant: sorted by `Request.place`, which is unique.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from mmcached.engine.steps.request import Request

_PLACE = attrgetter("place")


class RequestQueue:
    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __reversed__(self) -> Iterator[Request]:
        return reversed(self._requests)

    def __contains__(self, request: Request) -> bool:
        index = bisect_left(self._requests, request.place, key=_PLACE)
        return index < len(self._requests) and self._requests[index] is request

    def add(self, request: Request) -> None:
        insort(self._requests, request, key=_PLACE)

    def remove(self, request: Request) -> None:
        del self._requests[bisect_left(self._requests, request.place, key=_PLACE)]
