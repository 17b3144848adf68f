"""One streamed generation, or several of one prompt: sends requests, waits for pieces, acknowledges those taken.

The first request is sent with the first piece, the others once it has tokens: they find its prompt in the prefix cache.
Invariant: a stream that has ended, in any way, is open neither here nor in the service.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from mmcached.client.contact import Contact, Deadline
from mmcached.client.links.link import Link
from mmcached.client.results import Generation, Piece
from mmcached.client.token_stream import News, TokenStream
from mmcached.client.verb import Verb
from mmcached.wire.errors import DeadlineExceeded, MmcachedError
from mmcached.wire.messages.frontend import Cancel, Generate
from mmcached.wire.sockets.frames import Frame

Attempt = Callable[[list[str | None], Sequence[Frame]], Verb[Piece]]
"""Sends requests with digests, one per file or none at all, and files; returns the first piece."""


class PieceStream:
    """The pieces of all answers; `end` must follow.

    Args:
        requests: One for each answer.
        by_name: For files that came by name: makes an attempt with the digests and files that it finds, and another one
            with the files that the service then needs; see `ModelVerbs.by_name`.

    Attributes:
        is_over: Whether all generations were returned.
    """

    def __init__(
        self,
        contact: Contact,
        requests: Sequence[Generate],
        payload: Sequence[Frame],
        by_name: Callable[[Attempt], Verb[Piece]] | None = None,
    ) -> None:
        self.is_over = False
        self._contact = contact
        self._requests = requests
        self._by_name = by_name
        self._deadline: Deadline | None = None
        self._begin(requests, payload)

    def next_piece(self) -> Verb[Piece]:
        """Return the next piece of an answer, waiting for one if none was received; answers take turns.

        Raises:
            MmcachedError: As `Contact.exchange`, or the error that the service reports.
        """
        if self._link is None and self._by_name is not None:
            return self._by_name(self._attempt)
        return self._next_piece()

    def _begin(self, requests: Sequence[Generate], payload: Sequence[Frame]) -> None:
        self._payload = payload
        self._unsent = deque(TokenStream(request, answer_index=index) for index, request in enumerate(requests))
        self._sent: dict[int, TokenStream] = {}  # by request id; that whose turn is next first
        self._link: Link[Any] | None = None

    def _attempt(self, contents: list[str | None], files: Sequence[Frame]) -> Verb[Piece]:
        """Return the first piece of requests with these digests and files, which replace those of a former attempt."""
        self.end()
        requests = [
            replace(request, request_id=self._contact.next_id(), contents=contents) for request in self._requests
        ]
        self._begin(requests, files)
        return self._next_piece()

    def _next_piece(self) -> Verb[Piece]:
        link = self._link
        if self._deadline is None:
            self._deadline = self._contact.deadline(self._requests[0].timeout_s)
        if link is None:
            yield from self._contact.connect(self._deadline)
            link = self._link = self._contact.link()
            self._waiter = link.new_waiter()
            self._send(link, 1)
        elif not (self._waiter.news or any(stream.is_over for stream in self._sent.values())):
            link.catch_up()
        while True:
            while self._waiter.news:
                self._feed(self._waiter.news.popleft())
            if self._unsent and any(stream.has_begun for stream in self._sent.values()):
                self._send(link, len(self._unsent))
            stream = next((stream for stream in self._sent.values() if stream.has_news), None)
            if stream is not None:
                break
            if time.monotonic() >= self._deadline.at:
                raise DeadlineExceeded("generate", self._deadline.timeout_s)
            yield partial(link.wait, self._waiter, self._deadline.at)
        piece = stream.take()
        if (receipt := stream.take_receipt()) is not None:
            link.tell(receipt)
        del self._sent[stream.request_id]
        if isinstance(piece, Generation):
            link.leave(stream.request_id)
        else:
            self._sent[stream.request_id] = stream
        self.is_over = not self._sent
        return piece

    def end(self) -> None:
        """End the stream, and cancel the requests that are still open. A finalizer may call it."""
        if self._link is None:
            return
        for request_id, stream in self._sent.items():
            self._link.leave(request_id)
            if stream.is_open:
                self._link.tell(Cancel(self._contact.client_id, request_id))

    def _send(self, link: Link[Any], num_requests: int) -> None:
        for _ in range(num_requests):
            stream = self._unsent.popleft()
            self._sent[stream.request_id] = stream
            link.open(stream.request_id, self._waiter)
            link.send(stream.request, self._payload)

    def _feed(self, news: News | MmcachedError) -> None:
        if isinstance(news, MmcachedError):  # the connection is lost, or the client closed
            for stream in self._sent.values():
                stream.feed(news)
            return
        self._sent[getattr(news[0], "request_id")].feed(news)  # noqa: B009 (of each message that has one)
