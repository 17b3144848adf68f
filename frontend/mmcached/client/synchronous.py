"""Runs the calls in the caller's thread: `Client`, for scripts and threaded servers."""

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
from mmcached.client.links.shared_socket import CLOSED
from mmcached.client.links.thread_link import ThreadLink
from mmcached.client.links.uninterrupted import uninterrupted
from mmcached.client.namespaces import BaseNamespace, prefixed, prefixed_many
from mmcached.client.piece_stream import PieceStream
from mmcached.client.results import Piece
from mmcached.client.store.hits import reading_of
from mmcached.client.store.verbs import ValueT
from mmcached.client.verb import Call, Done, drive, driver_of
from mmcached.shm.store.codec import DEFAULT_LIBRARY, Library
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import MmcachedError
from mmcached.wire.messages.client import Welcome

MAX_CLOSE_S = 5.0
"""How long `close` waits for other uses of the connection to end; the longest is the copy of one large message."""

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(call: Callable[Concatenate[Calls, P], Call[T]]) -> Callable[Concatenate[Client, P], T]:
    """Return a call that returns when its verb has ended."""
    name = call.__name__

    @driver_of(call)
    def method(client: Client, /, *values: P.args, **named: P.kwargs) -> T:
        verb: Call[T] = getattr(client._current(), name)(*values, **named)  # of `TracedCalls`, if there is a tracer
        return verb.result if isinstance(verb, Done) else drive(verb)

    return method


def _blocking_stream(
    call: Callable[Concatenate[Calls, P], PieceStream],
) -> Callable[Concatenate[Client, P], Generator[Piece]]:
    """Return a call whose pieces are iterated over."""
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
    """Talk to the service of a run directory; every call waits for its answer.

    >>> with Client("/run/mmcached") as client:                      # doctest: +SKIP
    ...     answer = client.generate("What is this? <image>", [Path("cat.png")], max_tokens=16)
    ...     features = client.get_or_compute("cat.png@v1", lambda: {"embeds": tower(pixels)})["embeds"]

    The store's verbs (`get` … `drop`) treat a service that is gone, full or late as a miss, unless `fail_open` is
    False. After a restart of the service, and in a forked child, the next call connects anew; views that the child has
    inherited keep their bytes.

    Threads may share a client: each waits for its own answers, over one connection. A call that is interrupted (Ctrl-C,
    or whatever a signal handler raises) is ended in the service too; if that leaves the connection in pieces, the other
    threads' open calls end with a retryable error, and the next call connects anew. A signal handler or finalizer that
    calls the client in the middle of a call of its own thread gets `LocalProtocolError`.

    Args:
        run_dir: the service's run directory; default as `mmcached serve` has it.
        timeout_s: deadline of each call that names none.
        connect_timeout_s: how long a contact may take.
        tenant: name under which items are cached; other tenants never hit them.
        fail_open: also, a client can be made while no service is there.
        name: of this kind of client ("vllm"), under which `/metrics` shows hits, misses and puts.
        counts_hits: False if nothing that this client finds is to stay in the store for its sake, or to be counted.
        tracer_provider: of OpenTelemetry, which makes a span of each call; None: no spans, and nothing is imported.
    Raises:
        InvalidRequest: an argument can't be.
        ConfigError: the run directory is another user's, also with `fail_open`.
        ServiceUnavailable: nobody answers in that directory, and `fail_open` is False.
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
    claim_many = _blocking(Calls.claim_many)
    put = _blocking(Calls.put)
    get_or_compute = _blocking(Calls.get_or_compute)
    drop = _blocking(Calls.drop)
    delete = _blocking(Calls.delete)

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
        """Return True: a client of an empty store is a client all the same."""
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
        """Return a decorator: each call of the function is `get_or_compute` of the key that its arguments make.

        >>> @client.cached(key="embed/{name}@{version}")               # doctest: +SKIP
        ... def embed(name, version=1):
        ...     return tower(load(name))

        Args:
            key: template with arguments of the function as fields, which must be text, numbers, paths or None; or a
                function with the same arguments that returns the key. Arguments that it does not name do not tell
                results apart. Name the function and its version in it: the key is all that is compared.
            view, tensors, timeout_s, ttl_s, tenant: as for `get_or_compute`.
        Raises:
            InvalidRequest: (when decorating) the key is neither, has fields that are not arguments, or has none though
                the function has arguments; the function is a coroutine function, which `AsyncClient` takes. (In a call)
                the key of these arguments is invalid.
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
        """Return a view of the keys that begin with `name` and "/": its calls take and give what follows.

        Raises:
            InvalidRequest: the name is empty or too long.
        """
        return Namespace(self, name)

    @property
    def service(self) -> Welcome:
        """What the service said of itself.

        Raises:
            ServiceUnavailable: it is not there.
        """
        return drive(self._current().connect())

    def close(self) -> None:
        """Tell the service that this client goes, and let go of everything but views; calls of other threads, and all
        later ones, end with `ClientClosed`. A second call does nothing.
        """
        self._is_closed = True
        self._let_go(self._calls)

    # ---- how

    @staticmethod
    def _make_link(*values: Any, **named: Any) -> ThreadLink:
        return uninterrupted(partial(ThreadLink, *values, **named))

    def _begin(self) -> None:
        try:
            drive(self._enter())
        except BaseException:
            self.close()
            raise

    def _let_go(self, calls: Calls, why: MmcachedError = CLOSED) -> None:
        # A signal handler may close in the middle of its own thread's call; then the rest is done after that.
        with contextlib.suppress(TimeoutError):
            uninterrupted(partial(calls.contact.close, why), MAX_CLOSE_S)


class Namespace(BaseNamespace[Client]):
    """Keys of a `Client` that begin with a name and "/"; `Client.namespace` makes it. Its calls are the client's own.

    A `Claim`, or a `Pending`, has the key of the client: `put` it under the key that was claimed.

    >>> images = client.namespace("images")                            # doctest: +SKIP
    >>> images.put("cat@v1", pixels)  # "images/cat@v1" of the client    # doctest: +SKIP
    """

    get = prefixed(Client.get)
    get_many = prefixed_many(Client.get_many)
    put = prefixed(Client.put)
    get_or_compute = prefixed(Client.get_or_compute)
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
        """Return True: an empty namespace is a namespace all the same."""
        return True

    def delete(self, *keys: str, timeout_s: float | None = None, tenant: str | None = None) -> int:
        """As `Client.delete`."""
        return self._client.delete(*self._keys_of(keys), timeout_s=timeout_s, tenant=tenant)

    def keys(self, match: str = "*", *, timeout_s: float | None = None, tenant: str | None = None) -> list[str]:
        """As `Client.keys`; the keys come without the name."""
        return self._own(self._client.keys(self._match_of(match), timeout_s=timeout_s, tenant=tenant))
