"""Wraps Mooncake's own client, and translates its error numbers. Each call may take seconds: see `calls`.

Mooncake reads values into its own memory, from which they are copied: after an error it may still write. Heads of
values are read into registered scratch memory, which lives as long as the client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mmcached.second_level.backend import BackendError, BackendRefused, Value
from mmcached.second_level.records import MAX_VALUE_BYTES
from mmcached.wire.closeable import Closeable
from mmcached.wire.stats import Trouble

SCRATCH_BYTES = 64 << 10
_NO_ROOM = -200
_REFUSALS = {
    -10: "a buffer is too small: see buffer_mb",
    _NO_ROOM: "there is no room: see segment_mb",
    -600: "it is larger than a buffer or a segment has room for",
    -601: "another client has begun to write it since",
    -705: "it is being written",
    -706: "it is being read",
}
_UNREACHED = -900
"""This error and those below: the master was not reached, or is not a valid master."""
_LEFT_OPEN: list[object] = []
"""Clients that are kept open until the process ends."""


class Store(Protocol):
    """The used methods of `mooncake.store.MooncakeDistributedStore`. A negative number is an error."""

    def batch_is_exist(self, keys: list[str]) -> list[int]: ...

    def get_buffer(self, key: str) -> Any:
        """Return a buffer, freed with its last reference; None if the value is missing or unreachable."""

    def get_into_ranges(
        self,
        buffer_ptrs: list[int],
        all_keys: list[list[str]],
        all_dst_offsets: list[list[list[int]]],
        all_src_offsets: list[list[list[int]]],
        all_sizes: list[list[list[int]]],
    ) -> list[list[list[int]]]: ...

    def put(self, key: str, value: bytes) -> int:
        """Store a value unless the key has one; return 0 either way."""

    def upsert(self, key: str, value: bytes, config: Any = ...) -> int:
        """Store a value, in place if its length is unchanged. So a reader may see a part of each."""

    def remove(self, key: str, force: bool = ...) -> int: ...

    def register_buffer(self, buffer_ptr: int, size: int) -> int: ...

    def close(self) -> int: ...


class MooncakeClient(Closeable):
    """Mooncake's client, set up. Any number of threads may call.

    Args:
        pinned: Mooncake's configuration for values that must not be evicted.
        reach: Raises BackendError while the master does not answer.

    Attributes:
        store: Mooncake's own object.
    """

    def __init__(self, store: Store, pinned: object, reach: Callable[[], object]) -> None:
        self.store = store
        self._pinned = pinned
        self._reach = reach
        self._scratch: list[npt.NDArray[np.uint8]] = []

    def look(self, keys: Sequence[str]) -> list[bool]:
        found = self.store.batch_is_exist(list(keys))
        for status in found:
            if status <= _UNREACHED:
                raise _unreached(status)
        return [status == 1 for status in found]

    def read(self, key: str) -> Value | None:
        """Return a value; None if it is missing, its holder has died, or it exceeds `MAX_VALUE_BYTES`."""
        handle = self.store.get_buffer(key)
        if handle is None:
            return None
        with memoryview(handle) as found:
            if found.nbytes > MAX_VALUE_BYTES:
                return None
            value = np.empty(found.nbytes, np.uint8)
            value[:] = np.frombuffer(found, np.uint8)
        return value.data.toreadonly()

    def read_heads(self, keys: Sequence[str], num_bytes: int) -> list[Value | None]:
        """Return the first bytes of each value; None if it is missing or shorter."""
        heads: list[Value | None] = []
        at_once = SCRATCH_BYTES // num_bytes
        scratch = self._take_scratch()
        try:
            for first in range(0, len(keys), at_once):
                some = list(keys[first : first + at_once])
                offsets = [[at * num_bytes] for at in range(len(some))]
                (counts,) = self.store.get_into_ranges(
                    [scratch.ctypes.data], [some], [offsets], [[[0]] * len(some)], [[[num_bytes]] * len(some)]
                )
                for (at,), (count,) in zip(offsets, counts, strict=True):
                    if count <= _UNREACHED:
                        raise _unreached(count)
                    heads.append(scratch[at : at + num_bytes].tobytes() if count == num_bytes else None)
        finally:
            self._scratch.append(scratch)
        return heads

    def write(self, key: str, value: bytes, *, is_pinned: bool = False) -> None:
        _check(self.store.upsert(key, value, self._pinned) if is_pinned else self.store.upsert(key, value))

    def write_first(self, key: str, value: bytes) -> None:
        _check(self.store.put(key, value))

    def remove(self, key: str) -> None:
        """Remove a value, even while it is being read."""
        self.store.remove(key, True)

    def close(self) -> None:
        """Close the client at the master; if the master does not answer, leave the client open."""
        try:
            self._reach()
        except BackendError:
            self.leave_open()
        else:
            self.store.close()

    def leave_open(self) -> None:
        """Keep the client until the process ends: closing it would wait for the master and block all threads."""
        _LEFT_OPEN.append(self.store)

    def _take_scratch(self) -> npt.NDArray[np.uint8]:
        try:
            return self._scratch.pop()
        except IndexError:
            scratch = np.zeros(SCRATCH_BYTES, np.uint8)
            _check(self.store.register_buffer(scratch.ctypes.data, scratch.nbytes))
            return scratch


def _check(status: int) -> None:
    if status <= _UNREACHED:
        raise _unreached(status)
    if status in _REFUSALS:
        trouble: Trouble = "full" if status == _NO_ROOM else "refused"
        raise BackendRefused(f"Mooncake refuses: {_REFUSALS[status]} (error {status})", trouble)
    if status < 0:
        raise BackendError(f"Mooncake could not store or read a value (error {status})")


def _unreached(status: int) -> BackendError:
    return BackendError(f"Mooncake's master is not reached (error {status})")
