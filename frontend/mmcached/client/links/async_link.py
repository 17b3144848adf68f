"""The socket of an asyncio client: any number of requests at a time over one connection.

    reader task    hands each answer to the call that waits for it, tokens and rows to their stream; the rest to `hear`,
                   whose reply is sent
    watcher task   a lost connection ends all open calls and streams: the frontend that knew of them has died

Knows nothing of what the messages mean. One event loop owns a link.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import zmq
import zmq.asyncio

from mmcached.client.links import forks
from mmcached.client.links.conversation import Ask, answer_id, failure_of
from mmcached.client.links.presence import Presence
from mmcached.client.links.shared_socket import CLOSE_LINGER_MS, Received
from mmcached.client.links.sync_link import LOOK_INTERVAL_S, Arrived, Hear
from mmcached.client.token_stream import TokenStream
from mmcached.wire.errors import (
    ChannelFull,
    DeadlineExceeded,
    MmcachedError,
    PeerGone,
    RemoteProtocolError,
    RequestAborted,
    ServiceUnavailable,
)
from mmcached.wire.messages.client import ToClient, Tokens, Welcome
from mmcached.wire.messages.frontend import Cancel, ClientBye, ClientHello, Generate
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.channels import SEND_HIGH_WATER_MARK, Frame, decode_frames, encode_frames, make_decoder


class AsyncLink:
    """As `SyncLink`, for one event loop; make it inside that loop. Dropped without `close` it waits for nobody.

    Raises:
        ServiceUnavailable: no service has ever run in that directory.
        ConfigError: it is not this user's alone.
    """

    def __init__(
        self, directory: RunDir, client_id: str, *, arrived: Arrived, hear: Hear, lost: Callable[[], None]
    ) -> None:
        self._directory = directory
        self._socket_path = directory.client_address.removeprefix("ipc://")
        self._client_id = client_id
        self._arrived = arrived
        self._hear = hear
        self._lost = lost
        self._decoder = make_decoder(ToClient)
        self._waiting: dict[int, asyncio.Future[Received]] = {}
        self._streams: dict[int, tuple[TokenStream, asyncio.Event]] = {}
        self._greetings: set[asyncio.Future[None]] = set()
        self._presence = Presence(directory, client_id)
        self._end_presence = weakref.finalize(self, self._presence.close)
        self._end_presence.atexit = False
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.SNDHWM, SEND_HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(directory.client_address)
        self._let_go = weakref.finalize(self, _let_go, self._socket, self._monitor, self._context)
        self._let_go.atexit = False
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._watch())]

    async def greet(self, deadline: float, *, is_patient: bool) -> None:
        """As `SyncLink.greet`."""
        if not self._directory.is_served() and not is_patient:
            raise ServiceUnavailable("the service is not there; it is looked for again by itself")
        while True:
            greeting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._greetings.add(greeting)
            try:
                self.send(ClientHello(self._client_id))
                await asyncio.wait_for(greeting, max(0.0, deadline - time.monotonic()))
                return
            except TimeoutError:
                raise ServiceUnavailable("the service does not answer the greeting in time") from None
            except PeerGone:
                if not is_patient:
                    raise ServiceUnavailable("the service went away while it was greeted") from None
            finally:
                self._greetings.discard(greeting)

    async def exchange(self, request: Ask, payload: Sequence[Frame], *, deadline: float, timeout_s: float) -> Received:
        """As `SyncLink.exchange`."""
        self._presence.keep()
        future: asyncio.Future[Received] = asyncio.get_running_loop().create_future()
        self._waiting[request.request_id] = future
        try:
            self.send(request, payload)
            return await asyncio.wait_for(future, max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            self._take_back(future)
            raise DeadlineExceeded(type(request).__name__.lower(), timeout_s) from None
        except asyncio.CancelledError:
            self._take_back(future)
            raise
        finally:
            self._waiting.pop(request.request_id, None)

    def open_stream(self, request: Generate, payload: Sequence[Frame]) -> TokenStream:
        """As `SyncLink.open_stream`."""
        self._presence.keep()
        self.send(request, payload)
        event = asyncio.Event()
        stream = TokenStream(request, event.set)
        self._streams[request.request_id] = stream, event
        return stream

    async def wait_for_news(self, stream: TokenStream, *, deadline: float, timeout_s: float) -> None:
        """As `SyncLink.wait_for_news`; the reader puts what comes."""
        if stream.has_news:
            return
        _, event = self._streams[stream.request_id]
        event.clear()
        try:
            left_s = deadline - time.monotonic()
            # However late its caller comes, the reader has a turn to put what lies in the socket.
            async with asyncio.timeout(left_s if left_s > 0 else LOOK_INTERVAL_S):
                await event.wait()
        except TimeoutError:
            raise DeadlineExceeded("generate", timeout_s) from None

    def end_stream(self, stream: TokenStream) -> None:
        """As `SyncLink.end_stream`; asyncio ends abandoned streams in their own loop."""
        self._streams.pop(stream.request_id, None)
        if stream.is_open:
            self.tell(Cancel(self._client_id, stream.request_id))

    def send(self, message: object, payload: Sequence[Frame] = ()) -> None:
        """Queue one message; never waits. The socket's queue is the only limit.

        Raises:
            ChannelFull: it is reached; nothing was queued.
            RequestAborted: the client was closed.
        """
        if not self._let_go.alive:
            raise RequestAborted("the client was closed")
        frames: list[Any] = encode_frames(message, payload)
        try:
            sent: Any = self._socket.send_multipart(frames, zmq.NOBLOCK)
            sent.result()  # it never waits, so it is done
        except zmq.Again:
            raise ChannelFull(f"{SEND_HIGH_WATER_MARK} messages wait for the service; try again later") from None

    def tell(self, message: object) -> None:
        """As `SyncLink.tell`."""
        with contextlib.suppress(ChannelFull, RequestAborted):
            self.send(message)

    def abandon(self) -> None:
        """As `SyncLink.abandon`."""
        self._fail_streams(RequestAborted("the stream is the parent's"))
        self._presence.abandon()
        self._end_presence.detach()
        self._let_go.detach()
        forks.keep_for_ever(self, self._socket, self._monitor, self._context)
        forks.close_connections(self._socket_path)

    async def close(self) -> None:
        """As `SyncLink.close`; open calls and streams end with `RequestAborted`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fail_all(RequestAborted("the client was closed"))
        if forks.is_listening(self._socket_path):
            self._socket.setsockopt(zmq.LINGER, CLOSE_LINGER_MS)
            self.tell(ClientBye(self._client_id))
        self._let_go()
        self._end_presence()

    async def _read(self) -> None:
        while True:
            frames = await self._socket.recv_multipart()
            try:
                message, payload = decode_frames(frames, self._decoder)
            except RemoteProtocolError as error:
                self._fail_all(error)
                continue
            self._take_in(message, payload)
            del frames, message, payload  # views of a record may live in them, and this task waits for long

    def _take_in(self, message: ToClient, payload: list[Frame]) -> None:
        message = self._arrived(message)
        if isinstance(message, Tokens):
            for rows in message.rows:
                if rows.request_id in self._streams:
                    self._streams[rows.request_id][0].put_rows(rows, payload)
            for piece in message.streams:
                if piece.request_id in self._streams:
                    self._streams[piece.request_id][0].put(piece)
            return
        request_id = answer_id(message)
        if request_id in self._streams:
            self._streams[request_id][0].answer(message, payload)
            return
        future = None if request_id is None else self._waiting.get(request_id)
        if future is not None and not future.done():
            future.set_result((message, payload))
            return
        self._hear_and_reply(message)
        if isinstance(message, Welcome):
            for greeting in self._greetings:
                if not greeting.done():
                    greeting.set_result(None)
        elif request_id is None and (error := failure_of(message)) is not None:
            self._fail_all(error)

    def _take_back(self, future: asyncio.Future[Received]) -> None:
        """An answer that came in the same turn of the loop as the end of its call: nobody else will see it."""
        if future.done() and not future.cancelled() and future.exception() is None:
            self._hear_and_reply(future.result()[0])

    def _hear_and_reply(self, message: ToClient) -> None:
        reply = self._hear(message)
        if reply is not None:
            self.tell(reply)

    async def _watch(self) -> None:
        while True:
            await self._monitor.recv_multipart()
            while await self._socket.poll(0):  # noqa: ASYNC110 (the reader task empties it)
                await asyncio.sleep(0)  # what the frontend said before it ended is read first
            self._lost()
            with contextlib.suppress(MmcachedError, OSError):
                self._presence.renew()
            self._fail_all(PeerGone("the frontend died while the call was open; try again"))

    def _fail_all(self, error: MmcachedError) -> None:
        futures: list[asyncio.Future[Any]] = [*self._waiting.values(), *self._greetings]
        for future in futures:
            if not future.done():
                future.set_exception(error)
        self._fail_streams(error)

    def _fail_streams(self, error: MmcachedError) -> None:
        for stream, _ in list(self._streams.values()):
            stream.fail(error)


def _let_go(socket: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket, context: zmq.asyncio.Context) -> None:
    """Close everything; the sockets first, or the end of the context would wait for them for ever."""
    for each in (monitor, socket):
        with contextlib.suppress(RuntimeError):  # their event loop is closed, so there is nothing to take them out of
            if each is socket:
                each.disable_monitor()
            each.close()
        zmq.Socket.close(each)
    context.term()
