"""Counts for each name of clients what they have found in the store, missed, and put there.

    hello ──> client: its name ──asks the frontend──> counted at once
                   └── its entry of the ring ──the ring has looked into it──> counted; before it says whose it is: kept

A name that is one too many counts as `OTHER_CLIENTS`, and so does what an entry has counted whose reader dies before it
has said whose it is: one that a restarted frontend took over. Knows nothing of records. Invariant: what was counted
once belongs to one name, for good.
"""

from __future__ import annotations

from collections.abc import Set

from mmcached.wire.messages.frontend import ANY_CLIENT
from mmcached.wire.stats import OTHER_CLIENTS, ClientStats

_NOTHING, _ONE_PUT = ClientStats(), ClientStats(puts=1)


class ClientFigures:
    """The figures by name.

    Args:
        max_names: with figures of their own.
    """

    def __init__(self, max_names: int) -> None:
        self._max_names = max_names
        self._client_to_name: dict[str, str] = {}
        self._incarnation_to_name: dict[int, str] = {}
        self._nobodys: dict[int, ClientStats] = {}
        self._by_name: dict[str, ClientStats] = {}

    def greet(self, client_id: str, name: str) -> None:
        """Take note of a client's name."""
        self._client_to_name[client_id] = name

    def leave(self, client_id: str) -> None:
        """Forget a client; what its entry has counted is still its name's."""
        self._client_to_name.pop(client_id, None)

    def clients(self) -> Set[str]:
        return self._client_to_name.keys()

    def attach(self, client_id: str, incarnation: int) -> None:
        """Take note that a client has the entry of this incarnation."""
        name = self._client_to_name.get(client_id, ANY_CLIENT)
        self._incarnation_to_name[incarnation] = name
        self._add(name, self._nobodys.pop(incarnation, ClientStats()))

    def ended(self, incarnation: int) -> None:
        """Forget an entry of which nothing more comes."""
        self._incarnation_to_name.pop(incarnation, None)
        self._add(OTHER_CLIENTS, self._nobodys.pop(incarnation, ClientStats()))

    # ---- counting

    def asked(self, client_id: str, num_hits: int, num_misses: int) -> None:
        """Count what the frontend has looked up for a client."""
        self._count(client_id, ClientStats(hits=num_hits, misses=num_misses))

    def put(self, client_id: str) -> None:
        """Count a put of a client that was kept."""
        self._count(client_id, _ONE_PUT)

    def found(self, incarnation: int, num_hits: int, num_misses: int) -> None:
        """Count what a reader has looked up by itself."""
        more = ClientStats(hits=num_hits, misses=num_misses)
        if (name := self._incarnation_to_name.get(incarnation)) is not None:
            self._add(name, more)
        else:
            self._nobodys[incarnation] = self._nobodys.get(incarnation, ClientStats()) + more

    def stats(self) -> dict[str, ClientStats]:
        """Return the figures of each name that has any."""
        return dict(self._by_name)

    def _count(self, client_id: str, more: ClientStats) -> None:
        self._add(self._client_to_name.get(client_id, ANY_CLIENT), more)

    def _add(self, name: str, more: ClientStats) -> None:
        if more == _NOTHING:
            return
        if name not in self._by_name and len(self._by_name.keys() - {OTHER_CLIENTS}) >= self._max_names:
            name = OTHER_CLIENTS
        self._by_name[name] = self._by_name.get(name, _NOTHING) + more
