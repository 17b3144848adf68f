"""`AsyncClient`: the same calls, awaitable, any number at a time over one connection. One event loop per client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import zmq
import zmq.asyncio

from mmcached.client.conversation import Ask, Conversation, Options, answer_id, expect, failure_of, open_presence
from mmcached.client.results import Generation, ImageLike, embeddings_from, generation_from, read_images
from mmcached.client.synchronous import GRACE_S
from mmcached.wire.channels import LINGER_MS, SEND_HIGH_WATER_MARK, Frame, decode_frames, encode_frames, make_decoder
from mmcached.wire.errors import (
    ChannelFull,
    DeadlineExceeded,
    MmcachedError,
    PeerGone,
    RemoteProtocolError,
    RequestAborted,
    ServiceUnavailable,
)
from mmcached.wire.messages.client import Encoded, Flushed, Generated, Probed, Stats, ToClient, Welcome
from mmcached.wire.messages.frontend import ClientBye
from mmcached.wire.paths import RunDir, default_run_dir
from mmcached.wire.stats import ServiceStats

if TYPE_CHECKING:
    import torch

Reply = tuple[ToClient, list[Frame]]


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
    ) -> None:
        self._directory = RunDir(Path(run_dir) if run_dir is not None else default_run_dir())
        self._options = Options(timeout_s, connect_timeout_s, tenant)
        self._decoder = make_decoder(ToClient)
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._welcome: asyncio.Future[Welcome] | None = None
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._talk = Conversation(self._options)
        self._presence = open_presence(self._directory, self._talk.client_id)
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.SNDHWM, SEND_HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(self._directory.client_address)
        self._welcome = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read())
        self._watcher = asyncio.create_task(self._watch())
        timeout_s = self._options.connect_timeout_s
        try:
            await self._send(self._talk.hello())
            self.service = await asyncio.wait_for(asyncio.shield(self._welcome), timeout_s)
        except TimeoutError:
            await self.close()
            raise ServiceUnavailable(f"the service does not answer within {timeout_s} s") from None
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def generate(
        self,
        prompt: str | Sequence[int],
        images: Sequence[ImageLike] = (),
        max_tokens: int = 16,
        *,
        hidden_states: bool = False,
        timeout_s: float | None = None,
    ) -> Generation:
        """As `Client.generate`."""
        request = self._talk.generate(prompt, max_tokens=max_tokens, hidden_states=hidden_states, timeout_s=timeout_s)
        message, payload = await self._call(request, read_images(images), request.timeout_s)
        return generation_from(expect(message, Generated), payload)

    async def encode(self, images: Sequence[ImageLike], *, timeout_s: float | None = None) -> list[torch.Tensor]:
        """As `Client.encode`."""
        request = self._talk.encode(timeout_s=timeout_s)
        message, payload = await self._call(request, read_images(images), request.timeout_s)
        return embeddings_from(expect(message, Encoded), payload)

    async def stats(self, *, timeout_s: float = 10.0) -> ServiceStats:
        """As `Client.stats`."""
        message, _ = await self._call(self._talk.get_stats(), (), timeout_s)
        return expect(message, Stats).stats

    async def probe(self, *, timeout_s: float = 1.0) -> Probed:
        """As `Client.probe`."""
        message, _ = await self._call(self._talk.probe(timeout_s=timeout_s), (), timeout_s)
        return expect(message, Probed)

    async def flush(self, *, timeout_s: float = 30.0) -> None:
        """As `Client.flush`."""
        message, _ = await self._call(self._talk.flush(), (), timeout_s)
        expect(message, Flushed)

    async def close(self) -> None:
        """Let go of everything; open calls end with `RequestAborted`. A second call does nothing."""
        if self._reader is None:
            return
        self._reader.cancel()
        self._watcher.cancel()
        await asyncio.gather(self._reader, self._watcher, return_exceptions=True)
        self._reader = None
        self._fail_all(RequestAborted("the client was closed"))
        await self._send(ClientBye(self._talk.client_id))
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()
        self._context.term()
        self._presence.close()

    async def _call(self, request: Ask, payload: Sequence[Frame], timeout_s: float) -> Reply:
        if self._reader is None:
            raise RequestAborted("the client is closed; use it inside `async with`")
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[request.request_id] = future
        try:
            await self._send(request, payload)
            return await asyncio.wait_for(future, timeout_s + GRACE_S)
        except TimeoutError:
            await self._send(self._talk.cancel(request.request_id))
            raise DeadlineExceeded(type(request).__name__.lower(), timeout_s) from None
        except asyncio.CancelledError:
            await self._send(self._talk.cancel(request.request_id))
            raise
        finally:
            self._waiting.pop(request.request_id, None)

    async def _send(self, message: object, payload: Sequence[Frame] = ()) -> None:
        """Queue one message; never waits. The socket's queue is the only limit."""
        frames: list[Any] = encode_frames(message, payload)
        try:
            await self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            raise ChannelFull(f"{SEND_HIGH_WATER_MARK} messages wait for the service; try again later") from None

    async def _read(self) -> None:
        """Hand each answer to the call that waits for it; late ones are dropped."""
        while True:
            frames = await self._socket.recv_multipart()
            try:
                message, payload = decode_frames(frames, self._decoder)
            except RemoteProtocolError as error:
                self._fail_all(error)
                continue
            if isinstance(message, Welcome):
                if self._welcome is not None and not self._welcome.done():
                    self._welcome.set_result(message)
                continue
            request_id = answer_id(message)
            if request_id is None:
                self._fail_all(failure_of(message) or RemoteProtocolError("an answer without a request"))
                continue
            future = self._waiting.get(request_id)
            if future is not None and not future.done():
                future.set_result((message, payload))

    async def _watch(self) -> None:
        """End all open calls when the connection is lost: the frontend that knew of them has died."""
        while True:
            await self._monitor.recv_multipart()
            while await self._socket.poll(0):  # noqa: ASYNC110 (the reader task empties it)
                await asyncio.sleep(0)  # what the frontend said before it ended is read first
            self._fail_all(PeerGone("the frontend died while the call was open; try again"))

    def _fail_all(self, error: MmcachedError) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
