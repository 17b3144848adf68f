"""Calls methods of living objects at each fork: a forked child shares descriptors, locks and leases, and owns none.

    fork ──> before it: the way of leases back is stopped
         ──> in the parent: what was out at the fork stays out, until parent and child have let go of it
         ──> in the child, before anything else runs: every client abandons what it has
                 └─ its next call connects anew, as another client with another entry

A fork that Python does not know of, by a library that does not call its hooks, is not seen.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from weakref import WeakKeyDictionary

_Methods = WeakKeyDictionary[object, Callable[[object], None]]
_before: _Methods = WeakKeyDictionary()
_in_parent: _Methods = WeakKeyDictionary()
_in_child: _Methods = WeakKeyDictionary()


def before(method: Callable[[], None]) -> None:
    """Have a method called before this process forks, while its object lives; one of each object."""
    _add(_before, method)


def in_parent(method: Callable[[], None]) -> None:
    """Have a method called after this process has forked; those that were added first, first."""
    _add(_in_parent, method)


def in_child(method: Callable[[], None]) -> None:
    """Have a method called in every child that this process forks."""
    _add(_in_child, method)


def _add(methods: _Methods, method: Callable[[], None]) -> None:
    methods[method.__self__] = method.__func__  # type: ignore[attr-defined]  # a method has both


def _call(methods: _Methods) -> None:
    for reference in methods.keyrefs():
        owner = reference()
        if owner is not None:
            method = methods[owner]
            try:
                method(owner)
            except BaseException:  # of a signal handler: it is lost here anyway, but what is to be done is not
                method(owner)


os.register_at_fork(
    before=lambda: _call(_before),
    after_in_parent=lambda: _call(_in_parent),
    after_in_child=lambda: _call(_in_child),
)
