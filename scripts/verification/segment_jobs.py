"""Names what the frontend of a modelled store of several segments may be told to do; `segment_frontend` does it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Receive:
    """Take the next message of a writer, if one has come."""

    writer: int = 1


@dataclass(frozen=True, slots=True)
class PutInMain:
    """Put a record that has come inline."""

    key: int


@dataclass(frozen=True, slots=True)
class Evict:
    """Make room where the record of a key lies, if nobody reads it."""

    key: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget the record of a key; its place is free when nobody reads it any more."""

    key: int


@dataclass(frozen=True, slots=True)
class Collect:
    """Free the places of what was dropped, where nobody reads it any more."""


@dataclass(frozen=True, slots=True)
class BeginMove:
    """Copy the record of a key into a free place of the main segment."""

    key: int


@dataclass(frozen=True, slots=True)
class EndMove:
    """Publish the copy, and drop the record that was copied."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Notice that the connection of a writer is closed, whether the writer is dead, stopped or alive."""

    writer: int = 1


@dataclass(frozen=True, slots=True)
class Flush:
    """Forget all records, and begin an epoch."""


@dataclass(frozen=True, slots=True)
class Died:
    """Wait until a process is dead."""

    role: int


@dataclass(frozen=True, slots=True)
class Settle:
    """Wait until these processes have ended; then all room must have an owner."""

    roles: tuple[int, ...]


Job = Receive | PutInMain | Evict | Drop | Collect | BeginMove | EndMove | Drain | Flush | Died | Settle
