"""The blocking client: `Client`, for scripts and threaded servers."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Generator
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from mmcached.client.arguments import checked_ttl, invalid
from mmcached.client.base import BaseClient
from mmcached.client.cached_functions import key_function
from mmcached.client.calls import Calls
from mmcached.client.links.thread_link import ThreadLink
from mmcached.client.links.uninterrupted import uninterrupted
from mmcached.client.namespaces import BaseNamespace, prefixed, prefixed_many
from mmcached.client.piece_stream import PieceStream
from mmcached.client.results import Piece
from mmcached.client.store.hits import reading_of
from mmcached.client.store.verbs import ValueT
from mmcached.client.verb import Call, ReadyResult, drive, driver_of
from mmcached.shm.store.codec import DEFAULT_LIBRARY, Library
from mmcached.wire.closeable import Closeable
from mmcached.wire.messages.client import Welcome

MAX_CLOSE_S = 5.0
"""Seconds that `close` waits for other uses of the connection to end; the longest is the copy of a large message."""

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(call: Callable[Concatenate[Calls, P], Call[T]]) -> Callable[Concatenate[Client, P], T]:
    """Return a method that drives the verb of a call to its end."""
    name = call.__name__

    @driver_of(call)
    def method(client: Client, /, *values: P.args, **named: P.kwargs) -> T:
        verb: Call[T] = getattr(client._current(), name)(*values, **named)  # by name: it may be of `TracedCalls`
        return verb.result if isinstance(verb, ReadyResult) else drive(verb)

    return method


def _blocking_stream(
    call: Callable[Concatenate[Calls, P], PieceStream],
) -> Callable[Concatenate[Client, P], Generator[Piece]]:
    """Return a method whose pieces are iterated over."""
    name = call.__name__

    @driver_of(call, Generator[Piece])
    def method(client: Client, /, *values: P.args, **named: P.kwargs) -> Generator[Piece]:
        return _pieces(getattr(client._current(), name)(*values, **named))

    return method


def _pieces(stream: PieceStream) -> Generator[Piece]:
    try:
        while not stream.is_over:
            yield drive(stream.next_piece())
    finally:
        stream.end()


class Client(BaseClient, Closeable):
    """Client of the service in a run directory; every call waits for its answer.

    >>> with Client("/run/mmcached") as client:                      # doctest: +SKIP
    ...     answer = client.generate("What is this? <image>", [Path("cat.png")], max_tokens=16)
    ...     features = client.get_or_compute("cat.png@v1", lambda: {"embeds": tower(pixels)})["embeds"]

    The store's calls (`get` … `drop`) treat a missing, full or late service as a miss, unless `fail_open` is False.
    After a restart of the service, and in a forked child, the next call connects anew; views that the child has
    inherited keep their bytes.

    Threads may share a client: each waits for its own answers, over one connection. A call that is interrupted (Ctrl-C,
    or any exception of a signal handler) is ended in the service too; if that breaks the connection, the other threads'
    open calls end with a retryable error, and the next call connects anew. A signal handler or finalizer that calls the
    client in the middle of a call of its own thread gets `LocalProtocolError`.

    Args:
        run_dir: Run directory of the service; default as for `mmcached serve`.
        timeout_s: Default deadline of a call.
        connect_timeout_s: Deadline of a contact.
        tenant: Name under which items are cached; other tenants never hit them.
        fail_open: Whether a missing service is a miss; a client can then also be made without a service.
        name: Name of this kind of client ("vllm"), under which `/metrics` shows hits, misses and puts.
        counts_hits: False if this client's hits must not be counted, nor keep records in the store longer.
        tracer_provider: OpenTelemetry provider for a span of each call; None: no spans, and OpenTelemetry is not
            imported.

    Raises:
        InvalidRequest: An argument is invalid.
        ConfigError: The run directory belongs to another user, also with `fail_open`.
        ServiceUnavailable: No service answers in that directory, and `fail_open` is False.
    """

    generate = _blocking(Calls.generate)
    generate_stream = _blocking_stream(Calls.generate_stream)
    encode = _blocking(Calls.encode)

    get = _blocking(Calls.get)
    get_many = _blocking(Calls.get_many)
    open = _blocking(Calls.open)
    contains_many = _blocking(Calls.contains_many)
    exists = _blocking(Calls.exists)
    keys = _blocking(Calls.keys)
    prefetch = _blocking(Calls.prefetch)
    pin = _blocking(Calls.pin)
    unpin = _blocking(Calls.unpin)
    claim_many = _blocking(Calls.claim_many)
    put = _blocking(Calls.put)
    get_or_compute = _blocking(Calls.get_or_compute)
    drop = _blocking(Calls.drop)
    delete = _blocking(Calls.delete)
    is_verifying = _blocking(Calls.is_verifying)
    sampled = _blocking(Calls.sampled)
    verified = _blocking(Calls.verified)

    resolve = _blocking(Calls.resolve)
    bind = _blocking(Calls.bind)
    forget = _blocking(Calls.forget)

    verify = _blocking(Calls.verify)
    invalidate = _blocking(Calls.invalidate)
    flush = _blocking(Calls.flush)
    ping = _blocking(Calls.ping)
    stats = _blocking(Calls.stats)
    processor_info = _blocking(Calls.processor_info)
    probe = _blocking(Calls.probe)

    def __contains__(self, key: str) -> bool:
        return self.exists(key)

    def __len__(self) -> int:
        """Return the number of records of this client's tenant on this host."""
        return len(self.keys())

    def __bool__(self) -> bool:
        """Return True, also for a client of an empty store."""
        return True

    def cached(
        self,
        *,
        key: str | Callable[..., str],
        view: bool = False,
        tensors: Library = DEFAULT_LIBRARY,
        timeout_s: float | None = None,
        ttl_s: float | None = None,
        tenant: str | None = None,
    ) -> Callable[[Callable[P, ValueT]], Callable[P, ValueT]]:
        """Return a decorator that turns calls of a function into `get_or_compute` with a key made from the arguments.

        >>> @client.cached(key="embed/{name}@{version}")               # doctest: +SKIP
        ... def embed(name, version=1):
        ...     return tower(load(name))

        Args:
            key: Template with arguments of the function as fields, which must be text, numbers, paths or None; or a
                function with the same arguments that returns the key. Calls that differ only in other arguments share a
                result. Name the function and its version in it: only the key is compared.
            view, tensors, timeout_s, ttl_s, tenant: As for `get_or_compute`.

        Raises:
            InvalidRequest: (when decorating) `key` is neither, has fields that are not arguments, or has no fields
                though the function has arguments; the function is a coroutine function, which `AsyncClient` takes. (In
                a call) the key of these arguments is invalid.
        """
        reading_of(tensors, view)
        checked_ttl(ttl_s)

        def decorate(fn: Callable[P, ValueT]) -> Callable[P, ValueT]:
            key_of = key_function(fn, key)
            if inspect.iscoroutinefunction(fn):
                raise invalid("fn", fn, "a plain function; AsyncClient takes coroutine functions")

            @wraps(fn)
            def call(*values: P.args, **named: P.kwargs) -> ValueT:
                compute = partial(fn, *values, **named)
                own_key = key_of(*values, **named)
                return self.get_or_compute(
                    own_key, compute, view=view, tensors=tensors, timeout_s=timeout_s, ttl_s=ttl_s, tenant=tenant
                )

            return call

        return decorate

    def namespace(self, name: str) -> Namespace:
        """Return a view of the keys that begin with `name` and "/"; its calls take and return keys without that prefix.

        Raises:
            InvalidRequest: The name is empty or too long.
        """
        return Namespace(self, name)

    @property
    def service(self) -> Welcome:
        """The service's description of itself.

        Raises:
            ServiceUnavailable: The service is missing.
        """
        return drive(self._current().connect())

    def close(self) -> None:
        """Disconnect from the service, and release all resources except views. A second call does nothing.

        Calls of other threads, and all later ones, end with `ClientClosed`.
        """
        self._is_closed = True
        # A signal handler may close in the middle of its own thread's call, which then finishes the close.
        with contextlib.suppress(TimeoutError):
            uninterrupted(self._calls.contact.close, MAX_CLOSE_S)

    # ---- internals

    @staticmethod
    def _make_link(*values: Any, **named: Any) -> ThreadLink:
        return uninterrupted(partial(ThreadLink, *values, **named))

    def _begin(self) -> None:
        try:
            drive(self._enter())
        except BaseException:
            self.close()
            raise


class Namespace(BaseNamespace[Client]):
    """Keys of a `Client` that begin with a name and "/"; `Client.namespace` makes it. Its calls are the client's own.

    A `Claim` or a `Pending` has the client's full key: `put` it with the client under that key.

    >>> images = client.namespace("images")                            # doctest: +SKIP
    >>> images.put("cat@v1", pixels)  # "images/cat@v1" of the client    # doctest: +SKIP
    """

    get = prefixed(Client.get)
    get_many = prefixed_many(Client.get_many)
    put = prefixed(Client.put)
    get_or_compute = prefixed(Client.get_or_compute)
    prefetch = prefixed_many(Client.prefetch)
    pin = prefixed_many(Client.pin)
    unpin = prefixed_many(Client.unpin)
    claim_many = prefixed_many(Client.claim_many)
    exists = prefixed(Client.exists)
    contains_many = prefixed_many(Client.contains_many)
    drop = prefixed(Client.drop)

    def __contains__(self, key: str) -> bool:
        return self.exists(key)

    def __len__(self) -> int:
        """Return the number of records of this namespace, as `len` of a client."""
        return len(self.keys())

    def __bool__(self) -> bool:
        """Return True, also for an empty namespace."""
        return True

    def delete(self, *keys: str, timeout_s: float | None = None, tenant: str | None = None, local: bool = False) -> int:
        """Drop records as `Client.delete`."""
        return self._client.delete(*self._keys_of(keys), timeout_s=timeout_s, tenant=tenant, local=local)

    def keys(self, match: str = "*", *, timeout_s: float | None = None, tenant: str | None = None) -> list[str]:
        """Return keys as `Client.keys`, without the namespace's name."""
        return self._own(self._client.keys(self._match_of(match), timeout_s=timeout_s, tenant=tenant))
