"""Poisonous requests: requests that have killed workers; equal requests are refused for a while.

They are remembered for the supervisor's restart window, within which a role that dies too often is given up. Requests
of equal kind, tenant, tokens and items are equal. Invariant: at most `MAX_KEPT`, the latest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

from mmcached.engine.steps.request import Request
from mmcached.wire.errors import PoisonousRequest

MAX_KEPT = 256


class PoisonousRequests:
    """Poisonous requests of one engine, each remembered for `window_s` seconds of the monotonic clock."""

    def __init__(self, window_s: float, *, clock: Callable[[], float]) -> None:
        self._window_s = window_s
        self._clock = clock
        self._kept: OrderedDict[Hashable, tuple[float, PoisonousRequest]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, request: Request, error: PoisonousRequest) -> None:
        key = _key(request)
        self._kept[key] = self._clock() + self._window_s, error
        self._kept.move_to_end(key)
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    def check(self, request: Request) -> None:
        """Raise `PoisonousRequest` if an equal request has killed workers recently."""
        if not self._kept:
            return
        key = _key(request)
        until, error = self._kept.get(key, (0.0, None))
        if error is None:
            return
        if self._clock() < until:
            raise error
        del self._kept[key]


def _key(request: Request) -> Hashable:
    items = tuple((feature.offset, feature.mm_hash) for feature in request.features)
    tokens = tuple(request.token_ids[: request.num_prompt_tokens])
    return request.kind, request.tenant, tokens, items
