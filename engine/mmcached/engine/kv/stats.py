"""Counts what admissions asked for and found: in all, and since the counts were last taken, as vLLM's loggers do.

Counted once per admission, in tokens: a request that is refused and asks again is counted when it gets in.
"""

from __future__ import annotations

from dataclasses import dataclass

from mmcached.engine.steps.request import Request


@dataclass(slots=True)
class PrefixCacheStats:
    """The admissions of an interval.

    Attributes:
        reset: whether the prefix cache was reset in between.
        requests, queries, hits: requests admitted for the first time, their tokens, and those found.
        preempted_requests, preempted_queries, preempted_hits: the same of requests that had been admitted before.
    """

    reset: bool = False
    requests: int = 0
    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0


class AdmissionCounts:
    """Counts since the start, and since they were last taken.

    Args:
        log_stats: whether intervals are counted.

    Attributes:
        queries, hits: tokens of first admissions, and those found, since the start.
        interval: the counts to be taken next; None without `log_stats`.
    """

    def __init__(self, *, log_stats: bool) -> None:
        self.queries = self.hits = 0
        self.interval = PrefixCacheStats() if log_stats else None

    def record(self, request: Request, num_hit_tokens: int) -> None:
        """Count the lookup of a request that gets in."""
        interval, num_tokens = self.interval, request.num_tokens
        if not request.was_admitted and not request.num_preemptions:
            self.queries += num_tokens
            self.hits += num_hit_tokens
            if interval is not None:
                interval.requests += 1
                interval.queries += num_tokens
                interval.hits += num_hit_tokens
        elif interval is not None:
            interval.preempted_requests += 1
            interval.preempted_queries += num_tokens
            interval.preempted_hits += num_hit_tokens

    def note_reset(self) -> None:
        """Note that the prefix cache was emptied."""
        if self.interval is not None:
            self.interval.reset = True

    def take(self) -> PrefixCacheStats | None:
        """Return and restart the interval."""
        taken = self.interval
        if taken is not None:
            self.interval = PrefixCacheStats()
        return taken
