"""Stands in for Mooncake's own client: keeps values in this process, and waits or fails as a test wants."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

NOT_FOUND, RANGE_TOO_LONG = -704, -600


class MemoryStore:
    """Any number of clients may be made of one: each sees what the others have put.

    Attributes:
        status: what each call answers instead of doing something; 0: it does it.
        goes_on: while it is not set, a call waits before it answers.
        waiting: one more for each call that has come to wait.
    """

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.pinned: set[str] = set()
        self.lost: set[str] = set()
        self.status = 0
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.waiting = threading.Semaphore(0)
        self.is_closed = False

    def batch_is_exist(self, keys: list[str]) -> list[int]:
        self._wait()
        return [self.status or int(key in self.values) for key in keys]

    def get_buffer(self, key: str) -> bytes | None:
        self._wait()
        return None if self.status or key in self.lost else self.values.get(key)

    def get_into_ranges(
        self,
        buffer_ptrs: list[int],
        all_keys: list[list[str]],
        all_dst_offsets: list[list[list[int]]],
        all_src_offsets: list[list[list[int]]],
        all_sizes: list[list[list[int]]],
    ) -> list[list[list[int]]]:
        self._wait()
        counts = []
        for key, (to,), (first,), (size,) in zip(
            all_keys[0], all_dst_offsets[0], all_src_offsets[0], all_sizes[0], strict=True
        ):
            value = self.values.get(key, b"")[first : first + size]
            if len(value) == size:
                ctypes.memmove(buffer_ptrs[0] + to, value, size)
            short = RANGE_TOO_LONG if key in self.values else NOT_FOUND
            counts.append([self.status or (size if len(value) == size else short)])
        return [counts]

    def put(self, key: str, value: bytes) -> int:
        self._wait()
        if not self.status:
            self.values.setdefault(key, value)
        return self.status

    def upsert(self, key: str, value: bytes, config: Any = None) -> int:
        self._wait()
        if not self.status:
            self.values[key] = value
            if config:
                self.pinned.add(key)
        return self.status

    def remove(self, key: str, force: bool = False) -> int:
        self._wait()
        return 0 if self.values.pop(key, None) else NOT_FOUND

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        return 0

    def close(self) -> int:
        self.is_closed = True
        return 0

    def _wait(self) -> None:
        if not self.goes_on.is_set():
            self.waiting.release()
            self.goes_on.wait()
