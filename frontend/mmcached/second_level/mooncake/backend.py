"""Implements the `second_level.backend` interface for Mooncake Store.

    mmcached:3:epoch            number │ number          pinned: not evicted; two copies, if two processes lend memory
    mmcached:3:record:NAME      evicted when memory is full; Mooncake has no time to live, so `ttl_s` has no effect
    mmcached:3:claim:NAME       word │ end               word of the first host; an expired claim is free

The 3 is `records.VERSION`; `namespaces` has the prefix of a fleet. Mooncake cannot compare and set: of two hosts that
begin an epoch at the same moment one is left behind, and has to be flushed again; of two drops at the same moment one
may not be announced.

A value may change while it is read. A record's checksum detects that; an epoch's halves differ then. The end of a claim
is in milliseconds of the wall clock: if hosts' clocks differ by more than a claim's lifetime, each of them computes.
"""

from __future__ import annotations

import contextlib
import secrets
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from mmcached.second_level.backend import BackendError, BackendLate, BackendRefused, Value
from mmcached.second_level.drops import with_entry
from mmcached.second_level.mooncake.calls import BoundedCalls
from mmcached.second_level.mooncake.client import MooncakeClient
from mmcached.second_level.namespaces import key_prefix
from mmcached.wire.closeable import Closeable

_EPOCH_VALUE = struct.Struct("<QQ")
_CLAIM_VALUE = struct.Struct("<16sQ")
MAX_CALLS = 8
_LOOKS_AFTER_S = 0.002
_MAX_LOOKS = 20
"""Polls of a claim that another host is writing."""

Result = TypeVar("Result")


class _EpochUnread(BackendError):
    """The value of the epoch is missing or invalid."""


class MooncakeBackend(Closeable):
    """The backend. Any number of threads may call; `MAX_CALLS` of their calls are made at a time.

    Args:
        start: Returns a client, or raises BackendError; called again until it succeeds.
        namespace: Name of the fleet; "" without one.
        wall_clock: Seconds since 1970.

    Attributes:
        calls: The calls under way.
    """

    def __init__(
        self,
        start: Callable[[], MooncakeClient],
        *,
        namespace: str = "",
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._start = start
        self._wall_clock = wall_clock
        self._word = secrets.token_bytes(16)
        prefix = key_prefix(namespace)
        self._epoch, self._record, self._claim = f"{prefix}epoch", f"{prefix}record:", f"{prefix}claim:"
        self.calls = BoundedCalls(MAX_CALLS)
        self._starting = threading.Lock()
        self._client: MooncakeClient | None = None

    def get_many(self, names: Sequence[str], *, deadline: float) -> tuple[int, list[Value | None]]:
        keys = [self._record + name for name in names]

        def ask(client: MooncakeClient) -> tuple[int, list[Value | None]]:
            epoch, present = self._look(client, keys)
            return epoch, [_read_in_time(client, key, deadline) if key in present else None for key in keys]

        return self._ask(ask, deadline)

    def get_heads(self, names: Sequence[str], num_bytes: int, *, deadline: float) -> tuple[int, list[Value | None]]:
        keys = [self._record + name for name in names]

        def ask(client: MooncakeClient) -> tuple[int, list[Value | None]]:
            epoch, present = self._look(client, keys)
            heads = dict(zip(present, client.read_heads(list(present), num_bytes), strict=True))
            return epoch, [heads.get(key) for key in keys]

        return self._ask(ask, deadline)

    def put(self, name: str, pieces: Sequence[Value], *, ttl_s: float, deadline: float) -> None:
        value = b"".join(pieces)  # the pieces are the caller's, and the call may outlast the caller
        self._ask(lambda client: client.write(self._record + name, value), deadline)

    def remove(self, names: Sequence[str], *, deadline: float) -> None:
        def ask(client: MooncakeClient) -> None:
            for name in names:
                client.remove(self._record + name)

        self._ask(ask, deadline)

    def log_drop(self, name: str, entry: bytes, *, ttl_s: float, deadline: float) -> None:
        key = self._record + name
        self._ask(lambda client: client.write(key, with_entry(client.read(key), entry)), deadline)

    def claim(self, name: str, *, ttl_s: float, deadline: float) -> bool:
        key = self._claim + name

        def ask(client: MooncakeClient) -> bool:
            now_ms, ttl_ms = round(self._wall_clock() * 1000), round(ttl_s * 1000)
            mine = _CLAIM_VALUE.pack(self._word, now_ms + ttl_ms)
            with contextlib.suppress(BackendRefused):  # where claims are refused, each host computes
                client.write_first(key, mine)
                word, end_ms = _await_claim(client, key, deadline)
                if word != self._word and 0 < end_ms - now_ms <= ttl_ms:
                    return False
                if (word, end_ms) != (self._word, now_ms + ttl_ms):
                    client.write(key, mine)
            return True

        return self._ask(ask, deadline)

    def drop_claim(self, name: str, *, deadline: float) -> None:
        key = self._claim + name

        def ask(client: MooncakeClient) -> None:
            if _claim_of(client.read(key))[0] == self._word:
                client.remove(key)

        self._ask(ask, deadline)

    def raise_epoch(self, epoch: int, *, over: int, deadline: float) -> int:
        def ask(client: MooncakeClient) -> int:
            found = 0
            with contextlib.suppress(_EpochUnread):
                found, _ = self._look(client, [])
            if found <= over:
                client.write(self._epoch, _EPOCH_VALUE.pack(epoch, epoch), is_pinned=True)
            return found

        return self._ask(ask, deadline)

    def close(self) -> None:
        """End all waits. A client in which calls are stuck stays open until the process ends."""
        self.calls.close()
        client, self._client = self._client, None
        if client is None:
            return
        if len(self.calls):
            client.leave_open()
        else:
            client.close()

    def _ask(self, ask: Callable[[MooncakeClient], Result], deadline: float) -> Result:
        return self.calls.run(lambda: ask(self._started(deadline)), deadline)

    def _look(self, client: MooncakeClient, keys: Sequence[str]) -> tuple[int, dict[str, None]]:
        """Return the epoch, and those of the keys that have a value."""
        has_epoch, *found = client.look([self._epoch, *keys])
        epoch = _read_epoch(client, self._epoch) if has_epoch else 0
        return epoch, dict.fromkeys(key for key, is_there in zip(keys, found, strict=True) if is_there)

    def _started(self, deadline: float) -> MooncakeClient:
        """Return the client; one thread starts it, while others wait until their deadlines."""
        if self._client is None:
            if not self._starting.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise BackendLate("Mooncake's client is being started")
            try:
                if self._client is None:
                    self._client = self._start()
            finally:
                self._starting.release()
        return self._client


def _read_epoch(client: MooncakeClient, key: str) -> int:
    value = client.read(key)
    if value is None or len(value) != _EPOCH_VALUE.size:
        raise _EpochUnread("Mooncake has lost the epoch, or it is being written")
    epoch, same = _EPOCH_VALUE.unpack(value)
    if epoch != same:
        raise _EpochUnread("a new epoch is being written")
    return int(epoch)


def _read_in_time(client: MooncakeClient, key: str, deadline: float) -> Value | None:
    if time.monotonic() >= deadline:
        raise BackendLate("Mooncake has not answered in time")
    return client.read(key)


def _await_claim(client: MooncakeClient, key: str, deadline: float) -> tuple[bytes, int]:
    """Return the word and end of a claim, polling while it is being written."""
    for _ in range(_MAX_LOOKS):
        value = client.read(key)
        if value is not None or time.monotonic() + _LOOKS_AFTER_S >= deadline:
            break
        time.sleep(_LOOKS_AFTER_S)
    return _claim_of(value)


def _claim_of(value: Value | None) -> tuple[bytes, int]:
    """Return the word of a claim and its end in ms since 1970; `b"", 0` if it is invalid."""
    if value is None or len(value) != _CLAIM_VALUE.size:
        return b"", 0
    word, end_ms = _CLAIM_VALUE.unpack(value)
    return word, end_ms
