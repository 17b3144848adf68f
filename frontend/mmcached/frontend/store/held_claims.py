"""Claims that this host holds among all hosts, and the messages that renew or release them at the second level.

    a client's fetch has ended without a record ──> held ──it still computes──> renewed: other hosts go on waiting
                                                     ├──no client computes it, and it will not be saved──> released
                                                     └──put ──> to be saved: the save, or its loss, ends the claim

Items that an engine encodes for a request are not held: a request waits for another host no longer than a claim lasts.
Sans I/O. A claim that is not renewed expires by itself: an error here costs other hosts a wait, or a computation.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from math import inf

from mmcached.wire.messages.second_level import ClaimState

LOOKS_PER_CLAIM = 3
"""Number of renewals of a claim within its lifetime."""


class HeldClaims:
    """The claims of one host, by the name of the record.

    Args:
        claim_s: Lifetime of a claim for other hosts, in seconds; 0.0: no record is claimed.
        is_computed: Returns whether a client computes a record now.
        clock: Monotonic time in seconds.
    """

    def __init__(self, claim_s: float, *, is_computed: Callable[[str], bool], clock: Callable[[], float]) -> None:
        self._interval_s = claim_s / LOOKS_PER_CLAIM
        self._is_computed = is_computed
        self._clock = clock
        self._name_to_look: dict[str, float] = {}  # in the order of times
        self._saved: set[str] = set()
        self._over: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._name_to_look) + len(self._saved) + len(self._over)

    @property
    def next_deadline(self) -> float:
        """The time at which the next message is due."""
        return -inf if self._over else next(iter(self._name_to_look.values()), inf)

    def begin(self, name: str) -> None:
        """Add a record that this host is to compute."""
        if self._interval_s:
            self._look_later(name)

    def will_be_saved(self, name: str) -> None:
        """Record that a record waits to be saved."""
        if self._name_to_look.pop(name, None) is not None:
            self._saved.add(name)

    def is_saved(self, name: str) -> None:
        """Forget a record that the second level was told to save: the save ends the claim."""
        self._saved.discard(name)

    def end(self, name: str) -> None:
        """Release the claim on a missing record, unless another client computes it; unknown names change nothing."""
        if self._is_computed(name):
            return
        if name in self._saved or name in self._name_to_look:
            self._saved.discard(name)
            self._name_to_look.pop(name, None)
            self._over[name] = None

    def take(self, now: float, limit: int) -> list[ClaimState]:
        """Return the states to report now, and schedule the next renewals."""
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
        """Forget all claims: the process that had made them has disconnected."""
        self._name_to_look.clear()
        self._saved.clear()
        self._over.clear()

    def _look_later(self, name: str) -> None:
        self._name_to_look.pop(name, None)
        self._name_to_look[name] = self._clock() + self._interval_s
