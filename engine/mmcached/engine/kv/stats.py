"""Counts the prefix-cache lookups of admitted requests, in tokens.

A request that is refused and asks again is counted once, when it is admitted.
"""

from __future__ import annotations

from mmcached.engine.steps.request import Request


class AdmissionCounts:
    """Counts since the start.

    Attributes:
        queries, hits: tokens of first admissions, and those found.
    """

    def __init__(self) -> None:
        self.queries = self.hits = 0

    def record(self, request: Request, num_hit_tokens: int) -> None:
        if not request.was_admitted and not request.num_preemptions:
            self.queries += request.num_tokens
            self.hits += num_hit_tokens
