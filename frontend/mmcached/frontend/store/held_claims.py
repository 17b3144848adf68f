"""Keeps which records this host computes for all hosts, and says of each to the second level: still, or not any more.

    a client's fetch has ended without a record ──> held ──it computes on──> kept: other hosts go on waiting
                                                     ├──nobody computes it, and nothing of it will be saved──> over
                                                     └──put ──> to be saved: the save ends the claim, or its loss does

What an engine encodes for a request is not held: a request waits no longer for another host than a claim lasts.
Sans I/O. A claim of which nothing is said ends by itself: a mistake here costs other hosts a wait, or a computation.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from math import inf

from mmcached.wire.messages.parts import ClaimState

LOOKS_PER_CLAIM = 3
"""How often a claim is renewed in the time for which other hosts believe in it."""


class HeldClaims:
    """The claims of one host, by the name of the record.

    Args:
        claim_s: how long other hosts believe in a claim; 0.0: nothing is claimed.
        is_computed: returns whether a client computes a record now.
        clock: monotonic seconds.
    """

    def __init__(self, claim_s: float, *, is_computed: Callable[[str], bool], clock: Callable[[], float]) -> None:
        self._interval_s = claim_s / LOOKS_PER_CLAIM
        self._is_computed = is_computed
        self._clock = clock
        self._name_to_look: dict[str, float] = {}  # in the order of looks
        self._saved: set[str] = set()
        self._over: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._name_to_look) + len(self._saved) + len(self._over)

    @property
    def next_deadline(self) -> float:
        """When there is something to say."""
        return -inf if self._over else next(iter(self._name_to_look.values()), inf)

    def begin(self, name: str) -> None:
        """Take note that this host is to compute a record."""
        if self._interval_s:
            self._look_later(name)

    def will_be_saved(self, name: str) -> None:
        """Take note that a record waits to be saved."""
        if self._name_to_look.pop(name, None) is not None:
            self._saved.add(name)

    def is_saved(self, name: str) -> None:
        """Take note that the second level was told to save a record: it ends the claim too."""
        self._saved.discard(name)

    def end(self, name: str) -> None:
        """Take note that a record will not come, unless somebody else computes it; unknown names change nothing."""
        if self._is_computed(name):
            return
        if name in self._saved or name in self._name_to_look:
            self._saved.discard(name)
            self._name_to_look.pop(name, None)
            self._over[name] = None

    def take(self, now: float, limit: int) -> list[ClaimState]:
        """Return what is to be said now, and when it is said again is noted."""
        for name, at in list(islice(self._name_to_look.items(), limit)):
            if at > now:
                break
            if not self._is_computed(name):
                self.end(name)
        said = [ClaimState(name, is_held=False) for name in islice(self._over, limit)]
        for each in said:
            del self._over[each.name]
        due = [name for name, at in islice(self._name_to_look.items(), limit) if at <= now]
        for name in due:
            self._look_later(name)
        return said + [ClaimState(name, is_held=True) for name in due]

    def clear(self) -> None:
        """Forget all: the process that had made the claims is gone."""
        self._name_to_look.clear()
        self._saved.clear()
        self._over.clear()

    def _look_later(self, name: str) -> None:
        self._name_to_look.pop(name, None)
        self._name_to_look[name] = self._clock() + self._interval_s
