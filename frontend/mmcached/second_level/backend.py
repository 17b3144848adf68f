"""Says what is asked of a server that several hosts share, whatever product it is.

Names and values are bytes that mean nothing here. A deadline is in monotonic seconds: by then a call has ended, with
what was asked for or with a `BackendError`. Nothing that a server says is believed further than that it said so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mmcached.wire.errors import MmcachedError

Value = bytes | bytearray | memoryview


class BackendError(MmcachedError):
    """The server was not reached, not in time, or has refused."""

    code = "second_level_failed"
    retryable = True


class Backend(Protocol):
    """One server, or one cluster. Any number of threads may call, each with a connection of its own."""

    def get_many(self, names: Sequence[str], *, deadline: float) -> tuple[int, list[Value | None]]:
        """Return the present epoch, 0 if there was none, and each value; what is missing is None."""

    def get_heads(self, names: Sequence[str], num_bytes: int, *, deadline: float) -> tuple[int, list[bytes | None]]:
        """As `get_many`, but of each value no more than its first bytes."""

    def put(self, name: str, pieces: Sequence[Value], *, ttl_s: float, deadline: float) -> None:
        """Store the pieces, one behind the other, in the place of what was there; for that long at most."""

    def claim(self, name: str, *, ttl_s: float, deadline: float) -> bool:
        """Return whether nobody else has claimed a name within that time; a server that cannot say so returns True."""

    def drop_claim(self, name: str, *, deadline: float) -> None:
        """End an own claim, if there is one."""

    def begin_epoch(self, *, deadline: float) -> int:
        """Raise the epoch by one, for all hosts; return it."""

    def close(self) -> None:
        """Let go of all connections. A second call changes nothing."""
