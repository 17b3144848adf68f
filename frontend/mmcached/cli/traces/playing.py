"""Plays recorded uses against a real store: each is looked up at its time, and put where it is missing.

The arrivals are open-loop: a use that is due while an earlier one still runs is late, and its lateness is measured. So
a store that is too slow for the trace shows it. Without times each use follows the one before it.

The records have the recorded sizes, and keys of their own for each run; they are deleted at the end.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mmcached.cli.traces.use_trace import UseTrace
from mmcached.client import Client

DELETED_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class Played:
    """What happened to each use, all of shape `(num_uses,)`.

    Attributes:
        is_found: Whether the store had it.
        is_kept: Whether it was put and kept.
        took_s: Seconds of the look-up, or of look-up and put.
        late_s: Seconds between its time and its begin.
        length_s: Seconds of the whole run.
    """

    is_found: npt.NDArray[np.bool_]
    is_kept: npt.NDArray[np.bool_]
    took_s: npt.NDArray[np.float64]
    late_s: npt.NDArray[np.float64]
    length_s: float


def play_on(client: Client, trace: UseTrace, advance: Callable[[], None] = lambda: None) -> Played:
    """Play all uses.

    Args:
        client: With `fail_open=False`, so that a service that does not answer is no row of misses.
        advance: Called after each use.
    """
    num_uses = len(trace.keys)
    is_found, is_kept = np.zeros(num_uses, np.bool_), np.zeros(num_uses, np.bool_)
    took_s, late_s = np.zeros(num_uses), np.zeros(num_uses)
    due = None if trace.times_s is None else trace.times_s.tolist()
    sizes, costs, prefix = trace.sizes.tolist(), trace.costs_s.tolist(), f"replay/{uuid.uuid4().hex}"
    payload = np.zeros(max(sizes), np.uint8)
    put: set[str] = set()
    started = time.perf_counter()
    try:
        for index, item in enumerate(trace.keys.tolist()):
            begin = time.perf_counter()
            if due is not None:
                at = started + due[index]
                if begin < at:
                    time.sleep(at - begin)
                    begin = time.perf_counter()
                late_s[index] = begin - at
            key = f"{prefix}/{item}"
            hit = client.get(key, view=True, tensors="numpy")
            if hit is None:
                is_kept[index] = bool(client.put(key, {"x": payload[: sizes[item]]}, cost_s=costs[item]))
                put.add(key)
            else:
                is_found[index] = True
                hit.close()
            took_s[index] = time.perf_counter() - begin
            advance()
        length_s = time.perf_counter() - started
    finally:
        keys = list(put)
        for first in range(0, len(keys), DELETED_AT_ONCE):
            client.delete(*keys[first : first + DELETED_AT_ONCE], local=True)
    return Played(is_found, is_kept, took_s, late_s, length_s)
