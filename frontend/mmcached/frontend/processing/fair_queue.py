"""Lets clients take turns in a queue: each gets as many of the next places as any other, however many entries it has.

    a: 1 2 3 4 …  1000
    b: 5                       taken: 1 5 6 2 3 4 …
    c: 6

An entry may belong to several clients: it comes out once, when the first of them is due. Knows nothing of what its
entries are. No locks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class FairQueue(Generic[T]):
    """Entries by client, each client's in the order in which they came."""

    def __init__(self) -> None:
        self._of_client: OrderedDict[str, OrderedDict[T, None]] = OrderedDict()  # who is due next, is first
        self._clients_of: dict[T, set[str]] = {}

    def __len__(self) -> int:
        return len(self._clients_of)

    def __contains__(self, entry: object) -> bool:
        return entry in self._clients_of

    def num_of(self, client: str) -> int:
        return len(self._of_client.get(client, ()))

    def add(self, entry: T, client: str) -> None:
        """Put an entry at the end of a client's; one that the client has already stays where it is."""
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
        """Remove an entry; return whether it was there."""
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
    """Return how much one client may have of what is limited: half of what the others leave, rounded up.

    So a client that takes all it can leaves as much to the next one as it has itself, and some to each after that.

    >>> [fair_share(8, of_others) for of_others in (0, 4, 6, 7, 8)]
    [4, 2, 1, 1, 0]
    """
    return (limit - of_others + 1) // 2
