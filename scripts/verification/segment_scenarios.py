"""Lists what is explored of a store of several segments.

Small scenarios are part of the suite, large ones of the soak.
"""

from __future__ import annotations

from collections.abc import Iterator

from scripts.verification.segment_frontend import (
    Evict,
    Grant,
    Receive,
    Settle,
)
from scripts.verification.segment_world import Scenario, Setting
from scripts.verification.weak_memory import Order

REFILLED = Setting(script=(Evict(0), Grant(), Receive(), Settle((1, 2))))


def both(name: str, setting: Setting) -> Iterator[Scenario]:
    for order in Order:
        yield Scenario(f"{name}, {order.value}", setting, order)


SMALL = (*both("a nursery is refilled while a reader looks", REFILLED),)
LARGE: tuple[Scenario, ...] = ()
