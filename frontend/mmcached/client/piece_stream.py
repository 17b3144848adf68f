"""One streamed generation: sends the request, waits for pieces, and acknowledges those that were taken.

The request is sent with the first piece. Invariant: a stream that has ended, in any way, is open neither here nor in
the service.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from mmcached.client.contact import Contact
from mmcached.client.links.link import Link
from mmcached.client.results import Generation, Piece
from mmcached.client.token_stream import TokenStream
from mmcached.client.verb import Verb
from mmcached.wire.errors import DeadlineExceeded
from mmcached.wire.messages.frontend import Cancel, Generate
from mmcached.wire.sockets.frames import Frame


class PieceStream:
    """One streamed generation; `end` must follow.

    Attributes:
        is_over: Whether the generation was returned.
    """

    def __init__(self, contact: Contact, request: Generate, payload: Sequence[Frame]) -> None:
        self.is_over = False
        self._contact = contact
        self._request = request
        self._payload = payload
        self._stream = TokenStream(request)
        self._link: Link[Any] | None = None

    def next_piece(self) -> Verb[Piece]:
        """Return the next piece, waiting for one if none was received.

        Raises:
            MmcachedError: As `Contact.exchange`, or the error that the service reports.
        """
        link, stream = self._link, self._stream
        if link is None:
            self._deadline = self._contact.deadline(self._request.timeout_s)
            yield from self._contact.connect(self._deadline)
            link = self._link = self._contact.link()
            self._waiter = link.open(self._request.request_id)
            link.send(self._request, self._payload)
        elif not (self._waiter.news or stream.is_over):
            link.catch_up()
        while True:
            while self._waiter.news:
                stream.feed(self._waiter.news.popleft())
            if stream.has_news:
                break
            if time.monotonic() >= self._deadline.at:
                raise DeadlineExceeded("generate", self._deadline.timeout_s)
            yield partial(link.wait, self._waiter, self._deadline.at)
        piece = stream.take()
        if (receipt := stream.take_receipt()) is not None:
            link.tell(receipt)
        self.is_over = isinstance(piece, Generation)
        return piece

    def end(self) -> None:
        """End the stream, and cancel the request if it is still open. A finalizer may call it."""
        if self._link is not None:
            self._link.leave(self._request.request_id)
            if self._stream.is_open:
                self._link.tell(Cancel(self._request.client_id, self._request.request_id))
