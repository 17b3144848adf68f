"""Counts what admissions asked for and found.

Counted once per admission, in tokens: a request that is refused and asks again is counted when it gets in.
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
        """Count the lookup of a request that gets in."""
        if not request.was_admitted and not request.num_preemptions:
            self.queries += request.num_tokens
            self.hits += num_hit_tokens
