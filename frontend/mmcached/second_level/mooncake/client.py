"""Calls Mooncake's own client, and says what its numbers mean. Each call may take seconds: see `calls`.

What Mooncake reads goes into memory of its own and is copied from there: after an error it may still write. The first
bytes of values, which it only reads into memory that it is told of, go into scratch memory that lives as long as it.
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
"""This and below: the master was not reached, or is not what it should be."""
_LEFT_OPEN: list[object] = []
"""What is never let go."""


class Store(Protocol):
    """What is used of `mooncake.store.MooncakeDistributedStore`. A negative number is an error."""

    def batch_is_exist(self, keys: list[str]) -> list[int]: ...

    def get_buffer(self, key: str) -> Any:
        """Return a buffer, freed when it is let go; None: missing, or not to be had."""

    def get_into_ranges(
        self,
        buffer_ptrs: list[int],
        all_keys: list[list[str]],
        all_dst_offsets: list[list[list[int]]],
        all_src_offsets: list[list[list[int]]],
        all_sizes: list[list[list[int]]],
    ) -> list[list[list[int]]]: ...

    def put(self, key: str, value: bytes) -> int:
        """Store a value, unless there is one; 0 either way."""

    def upsert(self, key: str, value: bytes, config: Any = ...) -> int:
        """Store a value; in place, if it is as long as the one before. So a reader may see part of each."""

    def remove(self, key: str, force: bool = ...) -> int: ...

    def register_buffer(self, buffer_ptr: int, size: int) -> int: ...

    def close(self) -> int: ...


class Client(Closeable):
    """Mooncake's client, set up. Any number of threads may call.

    Args:
        pinned: how Mooncake is told that a value shall not be evicted.
        reach: raises BackendError while the master does not answer.
    Attributes:
        store: Mooncake's own object.
    """

    def __init__(self, store: Store, pinned: object, reach: Callable[[], object]) -> None:
        self.store = store
        self._pinned = pinned
        self._reach = reach
        self._scratch: list[npt.NDArray[np.uint8]] = []

    def look(self, keys: Sequence[str]) -> list[bool]:
        """Return for each key whether something lies there."""
        found = self.store.batch_is_exist(list(keys))
        for status in found:
            if status <= _UNREACHED:
                raise _unreached(status)
        return [status == 1 for status in found]

    def read(self, key: str) -> Value | None:
        """Return a value. What is gone with the process that held it, or too large to be ours, is missing."""
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
        """Return the first bytes of each value; what is missing, or shorter, is None."""
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
        """Store a value in the place of what was there."""
        _check(self.store.upsert(key, value, self._pinned) if is_pinned else self.store.upsert(key, value))

    def write_first(self, key: str, value: bytes) -> None:
        """Store a value, unless there is one."""
        _check(self.store.put(key, value))

    def remove(self, key: str) -> None:
        """Remove a value, even one that is being read."""
        self.store.remove(key, True)

    def close(self) -> None:
        """Tell the master that this client ends; one that does not answer finds out when it hears nothing more."""
        try:
            self._reach()
        except BackendError:
            self.leave_open()
        else:
            self.store.close()

    def leave_open(self) -> None:
        """Have it end with this process: its own end would wait for the master, and no thread would run meanwhile."""
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
        raise BackendError(f"Mooncake could not bring a value to where it shall lie (error {status})")


def _unreached(status: int) -> BackendError:
    return BackendError(f"Mooncake's master is not reached (error {status})")
