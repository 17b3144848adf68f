"""Counts hits, misses and puts of the store by client name.

    hello ──> client: its name ──asks the frontend──> counted at once
                   └── its entry of the ring ──the ring has read its counts──> counted; kept while the name is unknown

Names beyond `MAX_NAMES` count as `OTHER`. If a reader dies before the frontend knows its client's name, which happens
after a restart of the frontend, the counts of its entry are added to `OTHER` too. Does not use records. Invariant: each
count is added to one name, for good.
"""

from __future__ import annotations

from collections.abc import Set

from mmcached.wire.figures import OTHER, CountsByKey
from mmcached.wire.messages.frontend import ANY_CLIENT
from mmcached.wire.stats import ClientStats

MAX_NAMES = 16
"""The most names with counters of their own."""


class ClientFigures:
    """Counters by client name."""

    def __init__(self) -> None:
        self._client_to_name: dict[str, str] = {}
        self._incarnation_to_name: dict[int, str] = {}
        self._unassigned: dict[int, tuple[int, int]] = {}
        """Hits and misses of entries without a name, by incarnation."""
        self._counts = CountsByKey(ClientStats, MAX_NAMES)

    def greet(self, client_id: str, name: str) -> None:
        self._client_to_name[client_id] = name

    def leave(self, client_id: str) -> None:
        """Forget a client; the counts of its entry still go to its name."""
        self._client_to_name.pop(client_id, None)

    def clients(self) -> Set[str]:
        return self._client_to_name.keys()

    def attach(self, client_id: str, incarnation: int) -> None:
        """Assign the entry of this incarnation to a client."""
        name = self._name_of(client_id)
        self._incarnation_to_name[incarnation] = name
        self._assign(incarnation, name)

    def ended(self, incarnation: int) -> None:
        """Forget an entry that will send no more counts."""
        self._incarnation_to_name.pop(incarnation, None)
        self._assign(incarnation, OTHER)

    # ---- counting

    def asked(self, client_id: str, num_hits: int, num_misses: int) -> None:
        """Count keys that the frontend has looked up for a client."""
        self._counts.add(self._name_of(client_id), hits=num_hits, misses=num_misses)

    def put(self, client_id: str) -> None:
        """Count a put of a client that was kept."""
        self._counts.add(self._name_of(client_id), puts=1)

    def found(self, incarnation: int, num_hits: int, num_misses: int) -> None:
        """Count keys that a reader has looked up by itself."""
        if (name := self._incarnation_to_name.get(incarnation)) is not None:
            self._counts.add(name, hits=num_hits, misses=num_misses)
        else:
            hits, misses = self._unassigned.get(incarnation, (0, 0))
            self._unassigned[incarnation] = (hits + num_hits, misses + num_misses)

    def stats(self) -> dict[str, ClientStats]:
        """Return the counters of each name that has any."""
        return self._counts.stats()

    def _name_of(self, client_id: str) -> str:
        return self._client_to_name.get(client_id, ANY_CLIENT)

    def _assign(self, incarnation: int, name: str) -> None:
        hits, misses = self._unassigned.pop(incarnation, (0, 0))
        self._counts.add(name, hits=hits, misses=misses)
