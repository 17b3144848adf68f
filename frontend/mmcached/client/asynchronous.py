"""`AsyncClient`: the same calls, awaitable, any number at a time over one connection. One event loop per client."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from mmcached.client.arguments import check_function, checked_image_ids, checked_key, checked_keys, run_dir_of
from mmcached.client.image_files import ImageLike, read_images
from mmcached.client.links import forks
from mmcached.client.links.async_link import AsyncLink
from mmcached.client.links.conversation import STREAM_WINDOW, Ask, Conversation, Options, expect
from mmcached.client.links.shared_socket import Received
from mmcached.client.results import Generation, Piece, embeddings_from, generation_from
from mmcached.client.store.fail_open import FailOpen, StoreCounters
from mmcached.client.store.hits import Hit, Reading
from mmcached.client.store.steps import Compute, Exchange, Greet, Step, Verb, drive_async
from mmcached.client.store.verbs import StoreVerbs
from mmcached.shm.store.codec import Library, Record
from mmcached.wire.errors import LocalProtocolError, MmcachedError, RequestAborted, ServiceUnavailable
from mmcached.wire.messages.client import Encoded, Flushed, Generated, Probed, Stats, Welcome
from mmcached.wire.messages.frontend import Generate
from mmcached.wire.messages.parts import RowsWanted
from mmcached.wire.sockets.channels import Frame
from mmcached.wire.stats import ServiceStats

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


class AsyncClient:
    """As `Client`, for asyncio. Use it with `async with`; a cancelled call cancels its request in the service.

    >>> async with AsyncClient("/run/mmcached") as client:            # doctest: +SKIP
    ...     first, second = await asyncio.gather(client.generate("a"), client.generate("b"))
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str] | None = None,
        *,
        timeout_s: float = 60.0,
        connect_timeout_s: float = 10.0,
        tenant: str = "",
        fail_open: bool = True,
    ) -> None:
        self._directory = run_dir_of(run_dir)
        self._options = Options(timeout_s, connect_timeout_s, tenant, fail_open)
        self._guard = FailOpen(is_open=fail_open)
        self._is_open = False
        self._link: AsyncLink | None = None
        self._begin()

    async def __aenter__(self) -> Self:
        self._is_open = True
        self._check_open()
        forks.abandon_in_children(self)
        try:
            deadline = time.monotonic() + self._options.connect_timeout_s
            await self._contact(deadline, is_patient=not self._options.fail_open)
        except MmcachedError as error:
            if not self._guard.is_miss("the first contact", error):
                await self.close()
                raise
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ---- what the model does

    @property
    def service(self) -> Welcome:
        """What the service said of itself when it was greeted last.

        Raises:
            ServiceUnavailable: it is not in contact.
        """
        if self._verbs.welcome is None:
            raise ServiceUnavailable("the service is not in contact; any call looks for it")
        return self._verbs.welcome

    async def generate(
        self,
        prompt: str | Sequence[int],
        images: Sequence[ImageLike | None] = (),
        max_tokens: int = 16,
        *,
        image_ids: Sequence[str | None] = (),
        hidden_states: bool | RowsWanted = False,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> Generation:
        """As `Client.generate`."""
        ids = checked_image_ids(image_ids, images)
        request = self._talk.generate(
            prompt,
            image_ids=ids,
            max_tokens=max_tokens,
            hidden_states=hidden_states,
            priority=priority,
            timeout_s=timeout_s,
        )
        message, payload = await self._call(request, read_images(images, ids), request.timeout_s)
        return generation_from(expect(message, Generated), payload)

    def generate_stream(
        self,
        prompt: str | Sequence[int],
        images: Sequence[ImageLike | None] = (),
        max_tokens: int = 16,
        *,
        image_ids: Sequence[str | None] = (),
        hidden_states: bool | RowsWanted = False,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[Piece]:
        """As `Client.generate_stream`, for `async for`; any number at a time. A task that is cancelled in it ends it.

        Whoever stops early ends the request when the iterator is closed, by `aclose()` or once nothing refers to it.
        """
        ids = checked_image_ids(image_ids, images)
        request = self._talk.generate(
            prompt,
            image_ids=ids,
            max_tokens=max_tokens,
            hidden_states=hidden_states,
            priority=priority,
            timeout_s=timeout_s,
            stream_window=STREAM_WINDOW,
        )
        return self._stream(request, read_images(images, ids))

    async def encode(
        self,
        images: Sequence[ImageLike | None],
        *,
        image_ids: Sequence[str | None] = (),
        timeout_s: float | None = None,
    ) -> list[torch.Tensor]:
        """As `Client.encode`."""
        ids = checked_image_ids(image_ids, images)
        request = self._talk.encode(image_ids=ids, timeout_s=timeout_s)
        message, payload = await self._call(request, read_images(images, ids), request.timeout_s)
        return embeddings_from(expect(message, Encoded), payload)

    # ---- the store

    async def get(
        self, key: str, *, view: bool = False, tensors: Library = "torch", timeout_s: float | None = None
    ) -> Hit | None:
        """As `Client.get`."""
        return (await self._run(self._verbs.get_many([checked_key(key)], Reading(tensors, view), timeout_s)))[0]

    async def get_many(
        self, keys: Sequence[str], *, view: bool = False, tensors: Library = "torch", timeout_s: float | None = None
    ) -> list[Hit | None]:
        """As `Client.get_many`."""
        return await self._run(self._verbs.get_many(checked_keys(keys), Reading(tensors, view), timeout_s))

    async def contains_many(self, keys: Sequence[str], *, timeout_s: float | None = None) -> list[bool]:
        """As `Client.contains_many`."""
        return await self._run(self._verbs.contains_many(checked_keys(keys), timeout_s))

    async def put(self, key: str, record: Record, *, timeout_s: float | None = None) -> bool:
        """As `Client.put`."""
        return await self._run(self._verbs.put(checked_key(key), record, timeout_s))

    async def get_or_compute(
        self,
        key: str,
        fn: Callable[[], Record | Awaitable[Record]],
        *,
        view: bool = False,
        tensors: Library = "torch",
        timeout_s: float | None = None,
    ) -> Record:
        """As `Client.get_or_compute`; `fn` may be a coroutine function. A plain one keeps the event loop waiting."""
        check_function(fn)
        return await self._run(self._verbs.get_or_compute(checked_key(key), fn, Reading(tensors, view), timeout_s))

    async def drop(self, key: str, *, timeout_s: float | None = None) -> bool:
        """As `Client.drop`."""
        return await self._run(self._verbs.drop(checked_key(key), timeout_s))

    def store_counters(self) -> StoreCounters:
        """As `Client.store_counters`."""
        return self._guard.counters

    # ---- the service

    async def invalidate(self, *, timeout_s: float = 30.0) -> None:
        """As `Client.invalidate`."""
        message, _ = await self._call(self._talk.flush(new_epoch=True), (), self._talk.timeout(timeout_s))
        expect(message, Flushed)
        self._verbs.expect_new_epoch()

    async def flush(self, *, timeout_s: float = 30.0) -> None:
        """As `Client.flush`."""
        message, _ = await self._call(self._talk.flush(), (), self._talk.timeout(timeout_s))
        expect(message, Flushed)

    async def stats(self, *, timeout_s: float = 10.0) -> ServiceStats:
        """As `Client.stats`."""
        message, _ = await self._call(self._talk.get_stats(), (), self._talk.timeout(timeout_s))
        return expect(message, Stats).stats

    async def probe(self, *, timeout_s: float = 1.0) -> Probed:
        """As `Client.probe`."""
        message, _ = await self._call(self._talk.probe(timeout_s=timeout_s), (), self._talk.timeout(timeout_s))
        return expect(message, Probed)

    async def close(self) -> None:
        """Let go of everything but views; open calls end with `RequestAborted`. A second call does nothing."""
        self._is_open = False
        self._verbs.close()
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    def abandon(self) -> None:
        """In a forked child: let go of what is the parent's. Called by itself; the next call connects anew."""
        self._guard.abandon()
        self._verbs.abandon()
        if self._link is not None:
            self._link.abandon()
        self._begin()

    # ---- how

    def _begin(self) -> None:
        """Be a new client, not yet connected."""
        self._talk = Conversation(self._options)
        self._verbs = StoreVerbs(self._talk, self._guard, tell=self._tell)
        self._link = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def _connection(self) -> AsyncLink:
        self._check_open()
        if self._link is None:
            verbs = self._verbs
            self._link = AsyncLink(
                self._directory,
                self._talk.client_id,
                arrived=verbs.arrived,
                hear=verbs.hear,
                lost=verbs.lose_contact,
            )
        return self._link

    def _tell(self, message: object) -> None:
        if self._link is not None:
            self._link.tell(message)

    def _check_open(self) -> None:
        if not self._is_open:
            raise RequestAborted("the client is closed; use it inside `async with`")
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop  # in a forked child: the first that comes
        if loop is not self._loop:
            raise LocalProtocolError("an AsyncClient is for one event loop; threads may share a Client")

    async def _contact(self, deadline: float, *, is_patient: bool) -> None:
        await drive_async(self._verbs.connect(deadline, is_patient=is_patient), self._perform)

    async def _call(self, request: Ask, payload: Sequence[Frame], timeout_s: float) -> Received:
        """Exchange a request that does not fail open; whatever ends the wait for it ends it in the service too."""
        self._check_open()
        deadline = time.monotonic() + timeout_s
        await self._contact(deadline, is_patient=True)
        link = self._connection()
        try:
            return await link.exchange(request, payload, deadline=deadline, timeout_s=timeout_s)
        except BaseException:
            link.tell(self._talk.cancel(request.request_id))
            raise

    async def _stream(self, request: Generate, payload: Sequence[Frame]) -> AsyncGenerator[Piece]:
        """Exchange a request whose tokens come as they commit; nothing is asked before the first step."""
        self._check_open()
        deadline = time.monotonic() + request.timeout_s
        await self._contact(deadline, is_patient=True)
        link = self._connection()
        stream = link.open_stream(request, payload)
        try:
            while True:
                await link.wait_for_news(stream, deadline=deadline, timeout_s=request.timeout_s)
                piece = stream.take()
                if (receipt := stream.take_receipt()) is not None:
                    link.tell(receipt)
                yield piece
                if isinstance(piece, Generation):
                    return
        finally:
            link.end_stream(stream)

    async def _run(self, verb: Verb[T]) -> T:
        self._check_open()
        result = await drive_async(verb, self._perform)
        self._check_open()  # closed meanwhile: what became of the call is not a miss
        return result

    async def _perform(self, step: Step) -> Any:
        match step:
            case Compute():
                result = step.fn()
                return await result if inspect.isawaitable(result) else result
            case Greet():
                return await self._connection().greet(step.deadline, is_patient=step.is_patient)
            case Exchange():
                return await self._connection().exchange(
                    step.request, step.payload, deadline=step.deadline, timeout_s=step.timeout_s
                )
