"""Defines the interface to a server that several hosts share.

Names and values are bytes without meaning here. A deadline is in monotonic seconds: a call ends by then, with its
result or with a `BackendError`. A server's answers are not trusted.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Protocol

from mmcached.wire.errors import MmcachedError
from mmcached.wire.stats import Trouble

Value = bytes | bytearray | memoryview


class BackendError(MmcachedError):
    """The server was not reached, or not in time, or its answer is invalid.

    Attributes:
        trouble: The cause, as a word that `status` and `doctor` explain.
    """

    code = "second_level_failed"
    retryable = True
    trouble: Trouble = "unreached"

    def __init__(self, reason: str, trouble: Trouble = "") -> None:
        super().__init__(reason)
        self.trouble = trouble or self.trouble


class BackendLate(BackendError):
    code = "second_level_late"
    trouble = "late"


class BackendRefused(BackendError):
    """The server has refused a call: it is full, a replica, or does not allow it."""

    code = "second_level_refused"
    trouble = "refused"


class HostApart(BackendError):
    """Another host was flushed since this one: the second level is not used until this host is flushed too."""

    code = "second_level_apart"

    def __init__(self) -> None:
        super().__init__("another host has been flushed since: `mmcached flush` here, once its servers are up to date")


Got = Value | BackendError | None
MAX_EPOCH = 1 << 62
"""The largest valid epoch."""
_DRAWN_BITS = 32


class Backend(Protocol):
    """One server or cluster. Any number of threads may call."""

    def get_many(self, names: Sequence[str], *, deadline: float) -> tuple[int, Sequence[Got]]:
        """Return the current epoch (0 if there is none) and each value, None if it is missing.

        If only some values were read in time, each other one is an error in its place.
        """

    def get_heads(self, names: Sequence[str], num_bytes: int, *, deadline: float) -> tuple[int, Sequence[Got]]:
        """Return the same as `get_many`, with at most the first `num_bytes` of each value."""

    def put(self, name: str, pieces: Sequence[Value], *, ttl_s: float, deadline: float) -> None:
        """Replace a value by the concatenated pieces, for at most `ttl_s` seconds."""

    def remove(self, names: Sequence[str], *, deadline: float) -> None:
        """Remove values; missing ones change nothing."""

    def log_drop(self, name: str, entry: bytes, *, ttl_s: float, deadline: float) -> None:
        """Append an entry to the value `name`, a log of drops like `drops.with_entry`, in one step if possible."""

    def claim(self, name: str, *, ttl_s: float, deadline: float) -> bool:
        """Claim a name, or renew an own claim; return False if another host has an unexpired claim.

        Returns True if the server cannot decide.
        """

    def drop_claim(self, name: str, *, deadline: float) -> None:
        """End an own claim, if there is one."""

    def raise_epoch(self, epoch: int, *, over: int, deadline: float) -> int:
        """Set the epoch of all hosts if the server's is at most `over`; return the server's former one, or 0."""

    def close(self) -> None:
        """Close all connections, those in use when their calls end. A second call does nothing."""


def next_epoch(former: int) -> int:
    """Return a random epoch above a former one, so that two hosts get different ones."""
    return former + 1 + secrets.randbits(_DRAWN_BITS)
