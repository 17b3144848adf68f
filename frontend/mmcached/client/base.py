"""Common base of both clients: settings, counters, and the calls of the current client id.

    client ──> calls of one id ──forked──> in the child: calls of the next id …

A call keeps the client id that it began with, so its claims and leases are never sent under another id; in a forked
child the rest of the call fails with `RequestAborted`, which is retryable. Every call of a closed client fails with
`ClientClosed`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mmcached.client.arguments import Options, invalid, run_dir_of
from mmcached.client.calls import Calls
from mmcached.client.contact import MakeLink
from mmcached.client.links import forks
from mmcached.client.store.fail_open import FailOpen, StoreCounters
from mmcached.client.verb import Verb
from mmcached.wire.errors import ClientClosed, MmcachedError
from mmcached.wire.messages.frontend import ANY_CLIENT

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider


class BaseClient(ABC):
    """A client without its calls; see `Client` for the arguments."""

    _make_link: ClassVar[MakeLink]

    def __init__(
        self,
        run_dir: str | os.PathLike[str] | None = None,
        *,
        timeout_s: float = 60.0,
        connect_timeout_s: float = 10.0,
        tenant: str = "",
        fail_open: bool = True,
        name: str = ANY_CLIENT,
        counts_hits: bool = True,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        options = Options(timeout_s, connect_timeout_s, tenant, fail_open, name, counts_hits)
        self._guard = FailOpen(is_open=fail_open)
        make_calls = Calls if tracer_provider is None else _traced(tracer_provider)
        self._new_calls = partial(make_calls, run_dir_of(run_dir), options, self._guard, type(self)._make_link)
        self._is_closed = False
        self._calls = self._new_calls()
        self._begin()

    def __repr__(self) -> str:
        contact = self._calls.contact
        state = "closed" if self._is_closed else "not in contact" if contact.welcome is None else "in contact"
        path, name = str(contact.directory.path), contact.options.name
        return f"{type(self).__name__}({path!r}, name={name!r}: {state})"

    @property
    def run_dir(self) -> Path:
        """Run directory of the service."""
        return self._calls.contact.directory.path

    def store_counters(self) -> StoreCounters:
        """Return this client's counters of store calls."""
        return self._guard.counters

    def _abandon(self) -> None:
        """In a forked child: release the parent's connection; the next call connects anew."""
        self._guard.abandon()
        self._calls.contact.abandon()
        self._calls = self._new_calls()

    @abstractmethod
    def _begin(self) -> None:
        """Finish the construction of a client."""

    def _enter(self) -> Verb[None]:
        """Greet the service for the first time; a missing service is a miss, unless the client is strict."""
        forks.in_child(self._abandon)
        try:
            yield from self._current().connect(is_patient=not self._guard.is_open)
        except MmcachedError as error:
            if not self._guard.is_miss("the first contact", error):
                raise

    def _current(self) -> Calls:
        """Return the calls of the current client id.

        Raises:
            ClientClosed: The client is closed.
        """
        if self._is_closed:
            raise ClientClosed
        return self._calls


def _traced(tracer_provider: Any) -> Callable[..., Calls]:
    if not callable(getattr(tracer_provider, "get_tracer", None)):
        limit = "a TracerProvider of OpenTelemetry, as opentelemetry.trace.get_tracer_provider() returns"
        raise invalid("tracer_provider", tracer_provider, limit)
    from mmcached.client.traced_calls import TracedCalls
    from mmcached.wire.tracing import tracer_of

    return partial(TracedCalls, tracer_of(tracer_provider))
