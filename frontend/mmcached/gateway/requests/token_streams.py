"""Hands tokens and rows, as they commit, from engines to the clients that asked for them.

    committed --> waiting --flush, within the windows--> sent --taken--> (windows open again)
                     |
                     +-- the generation ends: its answer has all tokens, so those that wait are dropped;
                         rows that wait go with the answer, before those that it brings (`rest`)

A client states how many tokens may be on the way before it says that it has taken them; for rows it is so many bytes.
While either window is used up, or its queue is full, all of the stream waits: rows of a step never come after its
tokens. Then all that waits goes in one piece. So for a client that takes slowly, at most its `max_tokens` and the rows
of its generation wait here, and its queue holds no more messages than its windows.

All that has come since the last flush goes to each client in one message. Invariant: a token, and of each key a row, is
sent once, in order, to the client that asked for it. Knows nothing of sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mmcached.gateway.requests.open_requests import OpenRequest
from mmcached.wire.errors import MissingRows, RequestAborted
from mmcached.wire.messages.client import Tokens
from mmcached.wire.messages.frontend import ROW_WINDOW_BYTES, Generate, TokensTaken
from mmcached.wire.messages.parts import RequestRows, Rows, StreamedTokens
from mmcached.wire.row_pieces import RowPieces
from mmcached.wire.sockets.frames import Frame

Send = Callable[[bytes, Tokens, Sequence[Frame]], bool]
"""Queues a message for a client; returns whether it was queued."""


@dataclass(slots=True, eq=False)
class OpenStream:
    """One generation; its first `num_sent` tokens have gone, and of these the client has taken `num_taken`.

    Attributes:
        rows: by key, what waits; empty if its rows all come with the answer.
        num_row_bytes_sent, num_row_bytes_taken: of all keys together.
    """

    peer: bytes
    request_id: int
    window: int
    row_window_bytes: int
    rows: dict[str, RowPieces]
    num_sent: int = 0
    num_taken: int = 0
    waiting: list[int] = field(default_factory=list)
    num_row_bytes_sent: int = 0
    num_row_bytes_taken: int = 0

    @property
    def num_committed(self) -> int:
        return self.num_sent + len(self.waiting)

    @property
    def can_send(self) -> bool:
        return (
            self.num_sent - self.num_taken < self.window
            and self.num_row_bytes_sent - self.num_row_bytes_taken < self.row_window_bytes
            and bool(self.waiting or any(map(len, self.rows.values())))
        )

    def sent(self) -> None:
        self.num_sent += len(self.waiting)
        self.waiting = []
        for pieces in self.rows.values():
            self.num_row_bytes_sent += pieces.num_bytes
            pieces.hand_on()


class TokenStreams:
    """All streamed generations of one frontend; each request holds its stream.

    Attributes:
        row_window_bytes: of each stream that is opened from now on.
    """

    def __init__(self, send: Send, row_window_bytes: int = ROW_WINDOW_BYTES) -> None:
        self._send = send
        self.row_window_bytes = row_window_bytes
        self._due: dict[OpenStream, None] = {}

    def open(self, request: OpenRequest) -> None:
        """Stream an accepted request, if its client wants that."""
        message = request.message
        if isinstance(message, Generate) and message.stream_window:
            wanted = message.rows if message.rows is not None and message.rows.delivery == "delta" else None
            rows = {} if wanted is None else {key: RowPieces(key, wanted.first) for key in wanted.keys}
            request.stream = OpenStream(
                request.peer, message.request_id, message.stream_window, self.row_window_bytes, rows
            )

    def close(self, request: OpenRequest) -> None:
        """Send nothing more of a request; a second call changes nothing."""
        if request.stream is not None:
            self._due.pop(request.stream, None)
            request.stream = None

    # ---- from engines

    def committed(self, request: OpenRequest, tokens: StreamedTokens) -> None:
        """Take what an engine has computed; of a request without a stream, nothing. What came before is left out."""
        stream = request.stream
        if stream is None:
            return
        num_known = stream.num_committed - tokens.first
        if num_known < 0:
            return  # a message was lost with a connection: the answer brings what is missing, and all behind it
        stream.waiting += tokens.token_ids[num_known:]
        self._may_be_due(stream)

    def committed_rows(self, request: OpenRequest, rows: Rows, payload: Sequence[Frame]) -> None:
        """As `committed`; to be called first for what comes in one message.

        Raises:
            RequestAborted: rows before them were lost with a connection, and the engine keeps none that it has sent.
        """
        stream = request.stream
        if stream is None or rows.key not in stream.rows:
            return
        _put(stream.rows[rows.key], rows, payload)
        self._may_be_due(stream)

    def rest(
        self, request: OpenRequest, rows: list[Rows], payload: Sequence[Frame]
    ) -> tuple[list[Rows], Sequence[Frame]]:
        """Return the rows of an answer with those before them that wait here, each key in one piece, and the frames.
        The stream is to be closed then.

        Raises:
            RequestAborted: as `committed_rows`.
        """
        stream = request.stream
        if stream is None or not stream.rows:
            return rows, payload
        for part in rows:
            if part.key in stream.rows:
                _put(stream.rows[part.key], part, payload)
        found = stream.rows.values()
        return [pieces.rows(frame) for frame, pieces in enumerate(found)], [pieces.data() for pieces in found]

    # ---- to clients

    def taken(self, request: OpenRequest, receipt: TokensTaken) -> None:
        stream = request.stream
        if stream is None:
            return
        stream.num_taken = max(stream.num_taken, min(receipt.num_tokens, stream.num_sent))
        num_bytes = min(receipt.num_row_bytes, stream.num_row_bytes_sent)
        stream.num_row_bytes_taken = max(stream.num_row_bytes_taken, num_bytes)
        self._may_be_due(stream)

    def flush(self) -> None:
        """Send what may be sent, in one message per client."""
        if not self._due:
            return
        by_peer: dict[bytes, list[OpenStream]] = {}
        for stream in self._due:
            by_peer.setdefault(stream.peer, []).append(stream)
        self._due.clear()
        for peer, streams in by_peer.items():
            tokens = [StreamedTokens(each.request_id, each.num_sent, each.waiting) for each in streams if each.waiting]
            pieces = [(each.request_id, part) for each in streams for part in each.rows.values() if len(part)]
            rows = [RequestRows(request_id, part.rows(frame)) for frame, (request_id, part) in enumerate(pieces)]
            if self._send(peer, Tokens(tokens, rows), [part.data() for _, part in pieces]):
                for stream in streams:
                    stream.sent()

    def due(self) -> set[OpenStream]:
        """Return the streams of which something may be sent."""
        return set(self._due)

    def _may_be_due(self, stream: OpenStream) -> None:
        if stream.can_send:
            self._due[stream] = None


def _put(pieces: RowPieces, rows: Rows, payload: Sequence[Frame]) -> None:
    """Append rows; raise `RequestAborted` if they do not go on where the pieces end."""
    try:
        pieces.put(rows, payload)
    except MissingRows as error:
        first, end = error.details["first"], error.details["end"]
        reason = f"rows [{first}, {end}) of {pieces.key!r} were lost with the connection to the engine; try again"
        raise RequestAborted(reason) from error
