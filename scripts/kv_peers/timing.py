"""CPU time of samples taken in turn. A busy neighbour takes the processor away, but its time is not ours.

A *sampler* prepares untimed, runs, and returns nanoseconds of CPU time per unit of what it has run.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

Sampler = Callable[[], float]
Name = TypeVar("Name", bound=Hashable)


def cpu_ns(run: Callable[[], object]) -> int:
    """Return what a call takes; its result lives until the clock has been read."""
    started = time.thread_time_ns()
    result = run()
    taken = time.thread_time_ns() - started
    del result
    return taken


def compare(samplers: Mapping[Name, Sampler], num_rounds: int) -> dict[Name, float]:
    """Return each one's median over interleaved rounds, after one that does not count.

    What lives already is no matter for the garbage collector meanwhile, as in an engine that has started up; what a
    sampler makes is.
    """
    samples: dict[Name, list[float]] = defaultdict(list)
    names = list(samplers)
    gc.collect()
    gc.freeze()
    try:
        for number in range(num_rounds + 1):
            for shift in range(len(names)):
                name = names[(number + shift) % len(names)]
                value = samplers[name]()
                if number:
                    samples[name].append(value)
    finally:
        gc.unfreeze()
    return {name: statistics.median(samples[name]) for name in names}
