"""Callbacks at each fork: a forked child shares descriptors, locks and leases, and owns none of them.

    fork ──> before it: the return of leases is stopped
         ──> in the parent: leases that were out at the fork stay out until parent and child have released them
         ──> in the child, before other code runs: every client abandons its resources
                 └─ its next call connects anew, as another client with another entry

A fork by a library that does not call Python's fork hooks is not noticed.
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
    """Call a method before this process forks, while its object lives; one method per object."""
    _add(_before, method)


def in_parent(method: Callable[[], None]) -> None:
    """Call a method after this process has forked, in the order of registration; one method per object."""
    _add(_in_parent, method)


def in_child(method: Callable[[], None]) -> None:
    """Call a method in every child that this process forks; one method per object."""
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
            except BaseException:  # raised by a signal handler: it is lost here anyway, but the method must run
                method(owner)


os.register_at_fork(
    before=lambda: _call(_before),
    after_in_parent=lambda: _call(_in_parent),
    after_in_child=lambda: _call(_in_child),
)
