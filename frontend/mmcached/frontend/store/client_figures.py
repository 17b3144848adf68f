"""Hits, misses and puts of the store, by client name.

    hello ──> client: its name ──asks the frontend──> counted at once
                   └── its entry of the ring ──the ring has read its counts──> counted; kept while the name is unknown

Names beyond `max_names` count as `OTHER_CLIENTS`; so do the counts of an entry whose reader dies before its client is
known, after a restart of the frontend. Invariant: each count is added to one name, for good.
"""

from __future__ import annotations

from collections.abc import Set

from mmcached.wire.messages.frontend import ANY_CLIENT
from mmcached.wire.stats import OTHER_CLIENTS, ClientStats

_NOTHING, _ONE_PUT = ClientStats(), ClientStats(puts=1)


class ClientFigures:
    """Counters by client name.

    Args:
        max_names: Maximum number of names with counters of their own.
    """

    def __init__(self, max_names: int) -> None:
        self._max_names = max_names
        self._client_to_name: dict[str, str] = {}
        self._incarnation_to_name: dict[int, str] = {}
        self._nobodys: dict[int, ClientStats] = {}
        self._by_name: dict[str, ClientStats] = {}

    def greet(self, client_id: str, name: str) -> None:
        self._client_to_name[client_id] = name

    def leave(self, client_id: str) -> None:
        """Forget a client; the counts of its entry still go to its name."""
        self._client_to_name.pop(client_id, None)

    def clients(self) -> Set[str]:
        return self._client_to_name.keys()

    def attach(self, client_id: str, incarnation: int) -> None:
        name = self._client_to_name.get(client_id, ANY_CLIENT)
        self._incarnation_to_name[incarnation] = name
        self._add(name, self._nobodys.pop(incarnation, ClientStats()))

    def ended(self, incarnation: int) -> None:
        """Forget an entry that will send no more counts."""
        self._incarnation_to_name.pop(incarnation, None)
        self._add(OTHER_CLIENTS, self._nobodys.pop(incarnation, ClientStats()))

    # ---- counting

    def asked(self, client_id: str, num_hits: int, num_misses: int) -> None:
        """Count keys that the frontend has looked up for a client."""
        self._count(client_id, ClientStats(hits=num_hits, misses=num_misses))

    def put(self, client_id: str) -> None:
        self._count(client_id, _ONE_PUT)

    def found(self, incarnation: int, num_hits: int, num_misses: int) -> None:
        """Count keys that a reader has looked up by itself."""
        more = ClientStats(hits=num_hits, misses=num_misses)
        if (name := self._incarnation_to_name.get(incarnation)) is not None:
            self._add(name, more)
        else:
            self._nobodys[incarnation] = self._nobodys.get(incarnation, ClientStats()) + more

    def stats(self) -> dict[str, ClientStats]:
        """Return the counters of each name that has any."""
        return dict(self._by_name)

    def _count(self, client_id: str, more: ClientStats) -> None:
        self._add(self._client_to_name.get(client_id, ANY_CLIENT), more)

    def _add(self, name: str, more: ClientStats) -> None:
        if more == _NOTHING:
            return
        if name not in self._by_name and len(self._by_name.keys() - {OTHER_CLIENTS}) >= self._max_names:
            name = OTHER_CLIENTS
        self._by_name[name] = self._by_name.get(name, _NOTHING) + more
