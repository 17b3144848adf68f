"""A server in memory that hosts of a test share, with the faults that a test wants of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from mmcached.second_level.backend import BackendError, BackendLate, Value
from mmcached.second_level.drops import with_entry


class PlainServer:
    """What all hosts see.

    Attributes:
        values, claims: by name; of a claim, whose it is. None of it expires.
        fault: every call fails with it.
        is_stuck: set: every call takes until its deadline.
        num_calls: how often it was asked for anything.
        before: what is called at the beginning of each call, by the name of the method.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.lock = threading.Lock()
        self.values: dict[str, bytes] = {}
        self.claims: dict[str, object] = {}
        self.fault = ""
        self.is_stuck = threading.Event()
        self.released = threading.Event()
        self.num_calls = 0
        self.before: Callable[[str], None] = lambda name: None


class PlainBackend:
    """One host's way to it."""

    def __init__(self, server: PlainServer) -> None:
        self._server = server

    def get_many(self, names: Sequence[str], *, deadline: float) -> tuple[int, list[Value | None]]:
        self._begin("get_many", deadline)
        return self._server.epoch, [self._server.values.get(name) for name in names]

    def get_heads(self, names: Sequence[str], num_bytes: int, *, deadline: float) -> tuple[int, list[Value | None]]:
        self._begin("get_heads", deadline)
        values = [self._server.values.get(name) for name in names]
        return self._server.epoch, [None if value is None else value[:num_bytes] for value in values]

    def put(self, name: str, pieces: Sequence[Value], *, ttl_s: float, deadline: float) -> None:
        self._begin("put", deadline)
        self._server.values[name] = b"".join(pieces)

    def remove(self, names: Sequence[str], *, deadline: float) -> None:
        self._begin("remove", deadline)
        for name in names:
            self._server.values.pop(name, None)

    def log_drop(self, name: str, entry: bytes, *, ttl_s: float, deadline: float) -> None:
        self._begin("log_drop", deadline)
        with self._server.lock:
            self._server.values[name] = with_entry(self._server.values.get(name), entry)

    def claim(self, name: str, *, ttl_s: float, deadline: float) -> bool:
        self._begin("claim", deadline)
        return self._server.claims.setdefault(name, self) is self

    def drop_claim(self, name: str, *, deadline: float) -> None:
        self._begin("drop_claim", deadline)
        if self._server.claims.get(name) is self:
            del self._server.claims[name]

    def raise_epoch(self, epoch: int, *, over: int, deadline: float) -> int:
        self._begin("raise_epoch", deadline)
        with self._server.lock:
            found = self._server.epoch
            if found <= over:
                self._server.epoch = epoch
        return found

    def close(self) -> None:
        """It has no connections."""

    def _begin(self, what: str, deadline: float) -> None:
        server = self._server
        server.num_calls += 1
        server.before(what)
        if server.is_stuck.is_set():
            server.released.wait(max(0.0, deadline - time.monotonic()))
            raise BackendLate(f"{what} was not answered")
        if server.fault:
            raise BackendError(server.fault)
