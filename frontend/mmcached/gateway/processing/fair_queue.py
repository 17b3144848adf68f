"""A queue whose clients take turns: each gets an equal share of the next places, however many entries it has.

    a: 1 2 3 4 …  1000
    b: 5                       taken: 1 5 6 2 3 4 …
    c: 6

An entry may belong to several clients: it is taken once, at the turn of the first of them. No locks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class FairQueue(Generic[T]):
    """Entries by client, each client's in the order of arrival."""

    def __init__(self) -> None:
        self._of_client: OrderedDict[str, OrderedDict[T, None]] = OrderedDict()  # the next client is first
        self._clients_of: dict[T, set[str]] = {}

    def __len__(self) -> int:
        return len(self._clients_of)

    def __contains__(self, entry: object) -> bool:
        return entry in self._clients_of

    def num_of(self, client: str) -> int:
        return len(self._of_client.get(client, ()))

    def add(self, entry: T, client: str) -> None:
        """Append an entry to a client's entries, unless the client has it already."""
        self._of_client.setdefault(client, OrderedDict())[entry] = None
        self._clients_of.setdefault(entry, set()).add(client)

    def take(self) -> T | None:
        if not self._of_client:
            return None
        client, entries = next(iter(self._of_client.items()))
        self._of_client.move_to_end(client)
        entry = next(iter(entries))
        self.discard(entry)
        return entry

    def discard(self, entry: T) -> bool:
        clients = self._clients_of.pop(entry, None)
        for client in clients or ():
            entries = self._of_client[client]
            del entries[entry]
            if not entries:
                del self._of_client[client]
        return clients is not None

    def clear(self) -> None:
        self._of_client.clear()
        self._clients_of.clear()


def fair_share(limit: int, of_others: int) -> int:
    """Return one client's limit: half of `limit` less the use of others, rounded up.

    A client that takes all it may leaves as much to the next client as it has itself, and some to each after that.

    >>> [fair_share(8, of_others) for of_others in (0, 4, 6, 7, 8)]
    [4, 2, 1, 1, 0]
    """
    return (limit - of_others + 1) // 2
