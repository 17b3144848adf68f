"""Tokens on their way from engines to the clients that asked for them as they commit.

    committed --> waiting --flush, within the window--> sent --taken--> (window open again)
                     |
                     +-- the generation ends: its answer has all tokens, so what waits is dropped

A client states how many tokens may be on the way before it says that it has taken them. One that takes slowly, or not
at all, has the rest wait here, at most its `max_tokens`; it gets them in one piece when it goes on, or with the answer.
So nobody waits for it, and its queue holds no more messages than its windows. What a client's queue refuses waits too.

All that has come since the last flush goes to each client in one message. Invariant: a token is sent once, in order,
to the client that asked for it. Knows nothing of sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mmcached.frontend.open_requests import OpenRequest
from mmcached.wire.errors import InvariantError
from mmcached.wire.messages.client import StreamedTokens, Tokens
from mmcached.wire.messages.frontend import CommittedTokens, Generate

Send = Callable[[bytes, Tokens], bool]
"""Queues a message for a client; returns whether it was queued."""


@dataclass(slots=True)
class _Stream:
    """One generation; its first `num_sent` tokens have gone, and of these the client has taken `num_taken`."""

    peer: bytes
    request_id: int
    window: int
    num_sent: int = 0
    num_taken: int = 0
    waiting: list[int] = field(default_factory=list)

    @property
    def num_committed(self) -> int:
        return self.num_sent + len(self.waiting)

    @property
    def can_send(self) -> bool:
        return bool(self.waiting) and self.num_sent - self.num_taken < self.window


class TokenStreams:
    """All streamed generations of one frontend, by the number of their request."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._streams: dict[int, _Stream] = {}
        self._due: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, request: OpenRequest) -> None:
        """Stream an accepted request, if its client wants that."""
        message = request.message
        if isinstance(message, Generate) and message.stream_window:
            self._streams[request.number] = _Stream(request.peer, message.request_id, message.stream_window)

    def close(self, number: int) -> None:
        """It is answered, or over. An unknown one changes nothing."""
        self._streams.pop(number, None)
        self._due.pop(number, None)

    def committed(self, tokens: CommittedTokens) -> None:
        """Take what an engine has computed; of a generation that is over, nothing. What came before is left out."""
        stream = self._streams.get(tokens.request_id)
        if stream is None:
            return
        num_known = stream.num_committed - tokens.first
        if num_known < 0:
            return  # a message was lost with a connection: the answer brings what is missing, and all behind it
        stream.waiting += tokens.token_ids[num_known:]
        if stream.can_send:
            self._due[tokens.request_id] = None

    def taken(self, number: int, num_tokens: int) -> None:
        """A client has taken so many tokens of a stream."""
        stream = self._streams.get(number)
        if stream is None:
            return
        stream.num_taken = max(stream.num_taken, min(num_tokens, stream.num_sent))
        if stream.can_send:
            self._due[number] = None

    def flush(self) -> None:
        """Send what may be sent, in one message per client."""
        if not self._due:
            return
        by_peer: dict[bytes, list[_Stream]] = {}
        for number in self._due:
            stream = self._streams[number]
            by_peer.setdefault(stream.peer, []).append(stream)
        self._due.clear()
        for peer, streams in by_peer.items():
            parts = [StreamedTokens(stream.request_id, stream.num_sent, stream.waiting) for stream in streams]
            if self._send(peer, Tokens(parts)):
                for stream in streams:
                    stream.num_sent += len(stream.waiting)
                    stream.waiting = []

    def check_integrity(self) -> None:
        """Raise `InvariantError` if a stream is due that is not open, or has taken what was not sent."""
        if not self._due.keys() <= self._streams.keys():
            raise InvariantError(f"streams {sorted(self._due.keys() - self._streams.keys())} are due and not open")
        for number, stream in self._streams.items():
            if not 0 <= stream.num_taken <= stream.num_sent:
                raise InvariantError(f"stream {number}: {stream.num_taken} taken of {stream.num_sent} sent tokens")
