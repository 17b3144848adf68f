"""Finds the Redis server of a key, and holds the connections to each server.

one         always the same server; with sentinels each new connection asks them for the master
cluster     by the key's slot; the slots are read again after a server has redirected a key, or is gone
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from redis import Redis, Sentinel
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import RedisError
from redis.retry import Retry

from mmcached.second_level.backend import BackendError
from mmcached.second_level.redis.attempts import Attempts, Connections
from mmcached.second_level.redis.link import TIMEOUTS, RedisLink, tls_options
from mmcached.second_level.redis.place import Address, RedisPlace

NUM_SLOTS = 16_384
Slots = Mapping[int, Address]


class Nodes(Protocol):
    def at(self, key: str, deadline: float) -> Connections:
        """Return the connections to the server of a key."""

    def forget(self) -> None:
        """Forget the known servers, because one has moved or gone."""

    def close(self) -> None:
        """Close all connections."""


def nodes_of(place: RedisPlace) -> Nodes:
    return _Cluster(place) if place.kind == "cluster" else _One(place)


class _One:
    def __init__(self, place: RedisPlace) -> None:
        connect = partial(_connect_to_master, place) if place.kind == "sentinel" else partial(_connect, place)
        self._connections = Connections(connect)

    def at(self, key: str, deadline: float) -> Connections:
        return self._connections

    def forget(self) -> None:
        pass

    def close(self) -> None:
        self._connections.close()


class _Cluster:
    def __init__(self, place: RedisPlace) -> None:
        self._place = place
        self._slots: Slots | None = None
        self._known: tuple[Address, ...] = place.addresses
        self._connections: dict[Address, Connections] = {}
        self._lock = threading.Lock()
        self._attempts = Attempts(self._ask_for_slots, self._set_slots, lambda slots: None)

    def at(self, key: str, deadline: float) -> Connections:
        slots = self._attempts.until(lambda: self._slots, deadline)
        address = slots.get(key_slot(key.encode()))
        if address is None:
            self.forget()
            raise BackendError("a part of the cluster has no server")
        with self._lock:
            if address not in self._connections:
                self._connections[address] = Connections(partial(RedisLink, self._place, address))
            return self._connections[address]

    def forget(self) -> None:
        with self._attempts.turn:
            self._slots = None

    def close(self) -> None:
        self._attempts.close()
        with self._lock:
            for connections in self._connections.values():
                connections.close()

    def _ask_for_slots(self) -> Slots:
        error = ""
        for address in dict.fromkeys((*self._known, *self._place.addresses)):
            try:
                return _slots_from(self._place, address)
            except (RedisError, OSError) as known:
                error = str(known)
        raise BackendError(f"no server of the cluster is reached: {error}")

    def _set_slots(self, slots: Slots) -> None:
        self._slots = slots
        self._known = tuple(dict.fromkeys(slots.values()))
        with self._lock:
            for address in self._connections.keys() - self._known:
                self._connections.pop(address).close()


def _slots_from(place: RedisPlace, address: Address) -> Slots:
    with _client(place, address, place.username, place.password) as client:
        answer = client.execute_command("CLUSTER SLOTS")
    slots: dict[int, Address] = {}
    for first, last, (host, port, *_), *_ in answer:  # the first server of each range is its master
        shown = host.decode() if isinstance(host, bytes) else host
        slots.update(dict.fromkeys(range(first, min(last, NUM_SLOTS - 1) + 1), (shown or address[0], port)))
    return slots


def _connect(place: RedisPlace) -> RedisLink:
    return RedisLink(place, place.addresses[0] if place.addresses else None)


def _connect_to_master(place: RedisPlace) -> RedisLink:
    clients = [_client(place, one, place.sentinel_username, place.sentinel_password) for one in place.addresses]
    sentinel = Sentinel([])
    sentinel.sentinels = clients
    try:
        master: Address = sentinel.discover_master(place.service)
    except (RedisError, OSError) as error:
        raise BackendError(f"the sentinels name no master: {error}") from None
    finally:
        _close_all(clients)
    return RedisLink(place, master)


def _client(place: RedisPlace, address: Address, username: str | None, password: str | None) -> Redis:
    options: dict[str, Any] = {
        "username": username,
        "password": password,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        **TIMEOUTS,
        **tls_options(place),
    }
    return Redis(host=address[0], port=address[1], **options)


def _close_all(clients: Iterable[Redis]) -> None:
    for client in clients:
        client.close()
