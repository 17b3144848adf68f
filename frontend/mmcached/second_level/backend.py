"""Says what is asked of a server that several hosts share, whatever product it is.

Names and values are bytes that mean nothing here. A deadline is in monotonic seconds: by then a call has ended, with
what was asked for or with a `BackendError`. Nothing that a server says is believed further than that it said so.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Protocol

from mmcached.wire.errors import MmcachedError
from mmcached.wire.stats import Trouble

Value = bytes | bytearray | memoryview


class BackendError(MmcachedError):
    """The server was not reached, not in time, or talks nonsense.

    Attributes:
        trouble: what is wrong, in a word that `status` and `doctor` explain.
    """

    code = "second_level_failed"
    retryable = True
    trouble: Trouble = "unreached"

    def __init__(self, reason: str, trouble: Trouble = "") -> None:
        super().__init__(reason)
        self.trouble = trouble or self.trouble


class BackendLate(BackendError):
    """The server has not answered by the deadline."""

    code = "second_level_late"
    trouble = "late"


class BackendRefused(BackendError):
    """The server has answered that it will not do it: it is full, a replica, or does not allow it."""

    code = "second_level_refused"
    trouble = "refused"


Got = Value | BackendError | None
MAX_EPOCH = 1 << 62
"""A larger number is no epoch."""
_DRAWN_BITS = 32


class Backend(Protocol):
    """One server, or one cluster. Any number of threads may call, each with a connection of its own."""

    def get_many(self, names: Sequence[str], *, deadline: float) -> tuple[int, Sequence[Got]]:
        """Return the present epoch, 0 if there is none, and each value; what is missing is None.

        One that was not read in time, while others were, is an error in its place.
        """

    def get_heads(self, names: Sequence[str], num_bytes: int, *, deadline: float) -> tuple[int, Sequence[Got]]:
        """As `get_many`, but of each value no more than its first bytes."""

    def put(self, name: str, pieces: Sequence[Value], *, ttl_s: float, deadline: float) -> None:
        """Store the pieces, one behind the other, in the place of what was there; for that long at most."""

    def claim(self, name: str, *, ttl_s: float, deadline: float) -> bool:
        """Return whether nobody else has claimed a name within that time; a server that cannot say so returns True.

        An own claim is renewed.
        """

    def drop_claim(self, name: str, *, deadline: float) -> None:
        """End an own claim, if there is one."""

    def raise_epoch(self, epoch: int, *, over: int, deadline: float) -> int:
        """Set the epoch of all hosts, unless the server has one above `over`; return the one that it had, 0 if none.

        The epoch was set if and only if the returned one is `over` or less.
        """

    def close(self) -> None:
        """Let go of all connections, of one in use when its call ends. A second call changes nothing."""


def next_epoch(former: int) -> int:
    """Return an epoch above a former one. It is drawn: two hosts that follow the same epoch get different ones."""
    return former + 1 + secrets.randbits(_DRAWN_BITS)
