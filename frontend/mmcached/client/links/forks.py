"""Lets a forked child go of what is its parent's: it shares descriptors, locks and leases, and owns none of them.

    fork ──> in the child, before anything else runs: every client abandons what it has
                 └─ its next call connects anew, as another client with another entry

Views that the child has inherited stay valid only as long as the parent's.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """An object that shares descriptors with a forked child."""

    def abandon(self) -> None:
        """Let go of everything inherited, without a word to anybody; called in the child."""


_forkable: weakref.WeakSet[Forkable] = weakref.WeakSet()


def abandon_in_children(client: Forkable) -> None:
    """Have `client.abandon` called in every child that this process forks while the client lives."""
    _forkable.add(client)


def _after_fork() -> None:
    for client in list(_forkable):
        client.abandon()


os.register_at_fork(after_in_child=_after_fork)
