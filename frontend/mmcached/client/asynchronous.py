"""The asyncio client: `AsyncClient`, with any number of concurrent calls over one connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from mmcached.client.arguments import checked_ttl
from mmcached.client.base import BaseClient
from mmcached.client.cached_functions import key_function
from mmcached.client.calls import Calls
from mmcached.client.links.loop_link import LoopLink
from mmcached.client.namespaces import BaseNamespace, prefixed, prefixed_many
from mmcached.client.piece_stream import PieceStream
from mmcached.client.results import Piece
from mmcached.client.store.hits import reading_of
from mmcached.client.store.verbs import ValueT
from mmcached.client.verb import Call, drive_async, driver_of
from mmcached.shm.store.codec import DEFAULT_LIBRARY, Library
from mmcached.wire.errors import ClientClosed, LocalProtocolError, ServiceUnavailable
from mmcached.wire.messages.client import Welcome

P = ParamSpec("P")
T = TypeVar("T")


def _awaitable(
    call: Callable[Concatenate[Calls, P], Call[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    name = call.__name__

    @driver_of(call)
    async def method(client: AsyncClient, /, *values: P.args, **named: P.kwargs) -> T:
        return await drive_async(getattr(client._current(), name)(*values, **named))

    return method


def _awaitable_stream(
    call: Callable[Concatenate[Calls, P], PieceStream],
) -> Callable[Concatenate[AsyncClient, P], AsyncGenerator[Piece]]:
    name = call.__name__

    @driver_of(call, AsyncGenerator[Piece])
    def method(client: AsyncClient, /, *values: P.args, **named: P.kwargs) -> AsyncGenerator[Piece]:
        return _pieces(client, getattr(client._calls, name)(*values, **named))

    return method


async def _pieces(client: AsyncClient, stream: PieceStream) -> AsyncGenerator[Piece]:
    client._current()
    try:
        while not stream.is_over:
            yield await drive_async(stream.next_piece())
    finally:
        stream.end()


class AsyncClient(BaseClient):
    """Client for asyncio: the calls of `Client`, awaitable; `generate_stream` is for `async for`.

    Use it with `async with`. A cancelled call cancels its request in the service. A client belongs to one event loop.

    >>> async with AsyncClient("/run/mmcached") as client:            # doctest: +SKIP
    ...     first, second = await asyncio.gather(client.generate("a"), client.generate("b"))
    """

    _make_link = LoopLink
    _loop: asyncio.AbstractEventLoop | None = None

    generate = _awaitable(Calls.generate)
    generate_stream = _awaitable_stream(Calls.generate_stream)
    encode = _awaitable(Calls.encode)

    get = _awaitable(Calls.get)
    get_many = _awaitable(Calls.get_many)
    open = _awaitable(Calls.open)
    contains_many = _awaitable(Calls.contains_many)
    exists = _awaitable(Calls.exists)
    keys = _awaitable(Calls.keys)
    prefetch = _awaitable(Calls.prefetch)
    pin = _awaitable(Calls.pin)
    unpin = _awaitable(Calls.unpin)
    claim_many = _awaitable(Calls.claim_many)
    put = _awaitable(Calls.put)
    get_or_compute = _awaitable(Calls.get_or_compute)
    drop = _awaitable(Calls.drop)
    delete = _awaitable(Calls.delete)
    is_verifying = _awaitable(Calls.is_verifying)
    sampled = _awaitable(Calls.sampled)
    verified = _awaitable(Calls.verified)

    resolve = _awaitable(Calls.resolve)
    bind = _awaitable(Calls.bind)
    forget = _awaitable(Calls.forget)

    verify = _awaitable(Calls.verify)
    invalidate = _awaitable(Calls.invalidate)
    flush = _awaitable(Calls.flush)
    ping = _awaitable(Calls.ping)
    stats = _awaitable(Calls.stats)
    processor_info = _awaitable(Calls.processor_info)
    probe = _awaitable(Calls.probe)

    def cached(
        self,
        *,
        key: str | Callable[..., str],
        view: bool = False,
        tensors: Library = DEFAULT_LIBRARY,
        timeout_s: float | None = None,
        ttl_s: float | None = None,
        tenant: str | None = None,
    ) -> Callable[[Callable[P, ValueT | Awaitable[ValueT]]], Callable[P, Coroutine[Any, Any, ValueT]]]:
        """Return a decorator as `Client.cached`, for functions and coroutine functions; decorated ones are awaited."""
        reading_of(tensors, view)
        checked_ttl(ttl_s)

        def decorate(fn: Callable[P, ValueT | Awaitable[ValueT]]) -> Callable[P, Coroutine[Any, Any, ValueT]]:
            key_of = key_function(fn, key)

            @wraps(fn)
            async def call(*values: P.args, **named: P.kwargs) -> ValueT:
                compute = partial(fn, *values, **named)
                own_key = key_of(*values, **named)
                return await self.get_or_compute(
                    own_key, compute, view=view, tensors=tensors, timeout_s=timeout_s, ttl_s=ttl_s, tenant=tenant
                )

            return call

        return decorate

    def namespace(self, name: str) -> AsyncNamespace:
        """Return a view of the keys that begin with `name` and "/", as `Client.namespace`; its calls are awaited."""
        return AsyncNamespace(self, name)

    @property
    def service(self) -> Welcome:
        """The service's description of itself at the last greeting.

        Raises:
            ServiceUnavailable: The client is not in contact with the service.
        """
        welcome = self._calls.contact.welcome
        if welcome is None:
            raise ServiceUnavailable("the service is not in contact; any call looks for it")
        return welcome

    async def close(self) -> None:
        """Release all resources except views. A second call does nothing.

        Open and later calls end with `ClientClosed`.
        """
        self._is_closed = True
        self._calls.contact.close()

    async def __aenter__(self) -> Self:
        self._is_closed = False
        try:
            await drive_async(self._enter())
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ---- internals

    def _abandon(self) -> None:
        super()._abandon()
        self._loop = None  # set by the first call

    def _begin(self) -> None:
        self._is_closed = True  # until it is entered

    def _current(self) -> Calls:
        if self._is_closed:
            raise ClientClosed("the client is closed; use it inside `async with`")
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if loop is not self._loop:
            raise LocalProtocolError("an AsyncClient is for one event loop; threads may share a Client")
        return super()._current()


class AsyncNamespace(BaseNamespace[AsyncClient]):
    """Keys of an `AsyncClient` that begin with a name and "/"; see `Namespace`. Its calls are awaited."""

    get = prefixed(AsyncClient.get)
    get_many = prefixed_many(AsyncClient.get_many)
    put = prefixed(AsyncClient.put)
    get_or_compute = prefixed(AsyncClient.get_or_compute)
    prefetch = prefixed_many(AsyncClient.prefetch)
    pin = prefixed_many(AsyncClient.pin)
    unpin = prefixed_many(AsyncClient.unpin)
    claim_many = prefixed_many(AsyncClient.claim_many)
    exists = prefixed(AsyncClient.exists)
    contains_many = prefixed_many(AsyncClient.contains_many)
    drop = prefixed(AsyncClient.drop)

    async def delete(
        self, *keys: str, timeout_s: float | None = None, tenant: str | None = None, local: bool = False
    ) -> int:
        """Drop records as `AsyncClient.delete`."""
        return await self._client.delete(*self._keys_of(keys), timeout_s=timeout_s, tenant=tenant, local=local)

    async def keys(self, match: str = "*", *, timeout_s: float | None = None, tenant: str | None = None) -> list[str]:
        """Return keys as `AsyncClient.keys`, without the namespace's name."""
        return self._own(await self._client.keys(self._match_of(match), timeout_s=timeout_s, tenant=tenant))
