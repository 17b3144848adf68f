"""Sends tokens and rows, as engines commit them, to the clients that asked for streams.

    committed --> waiting --flush, within the windows--> sent --taken--> (windows open again)
                     |
                     +-- the generation ends: its answer has all tokens, so waiting tokens are dropped;
                         waiting rows are sent with the answer, before the rows that it brings (`rest`)

A client states how many tokens may be on the way before it confirms them; for rows the window is in bytes. While either
window is used up, or its queue is full, the whole stream waits, because rows of a step never come after its tokens.
Then all that waits is sent in one piece. So at most `max_tokens` and the rows of one generation wait here for a slow
client, and its queue holds no more messages than its windows.

All streams of a client are sent in one message per turn. Invariant: each token, and each row of a key, is sent once, in
order, to the client that asked for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.frontend.mount import Send
from mmcached.gateway.requests.open_requests import OpenRequest
from mmcached.gateway.requests.open_stream import OpenStream
from mmcached.wire.errors import MissingRows, RequestAborted
from mmcached.wire.messages.client import Tokens
from mmcached.wire.messages.frontend import ROW_WINDOW_BYTES, Generate, TokensTaken
from mmcached.wire.messages.parts import RequestRows, Rows, StreamedTokens
from mmcached.wire.row_pieces import RowPieces
from mmcached.wire.sockets.frames import Frame


class TokenStreams:
    """All streamed generations of one frontend; each request holds its stream.

    Attributes:
        row_window_bytes: Window of the streams that are opened from now on.
    """

    def __init__(self, send: Send, row_window_bytes: int = ROW_WINDOW_BYTES) -> None:
        self._send = send
        self.row_window_bytes = row_window_bytes
        self._due: dict[OpenStream, None] = {}

    def open(self, request: OpenRequest) -> None:
        """Open the stream of an accepted request, if its client asked for one."""
        message = request.message
        if isinstance(message, Generate) and message.stream_window:
            wanted = message.rows if message.rows is not None and message.rows.delivery == "delta" else None
            rows = {} if wanted is None else {key: RowPieces(key, wanted.first) for key in wanted.keys}
            request.stream = OpenStream(
                request.peer, message.request_id, message.stream_window, self.row_window_bytes, rows, request.text
            )

    def close(self, request: OpenRequest) -> None:
        """Close the stream of a request; a second call changes nothing."""
        if request.stream is not None:
            self._due.pop(request.stream, None)
            request.stream = None

    # ---- from engines

    def committed(self, request: OpenRequest, tokens: StreamedTokens) -> None:
        """Add tokens that an engine has computed to a request's stream, if it has one.

        Tokens that the stream has already are skipped.
        """
        stream = request.stream
        if stream is None:
            return
        num_known = stream.num_committed - tokens.first
        if num_known < 0:
            return  # a message was lost with a connection: the answer brings all missing tokens
        stream.add(tokens.token_ids[num_known:])
        self._may_be_due(stream)

    def committed_rows(self, request: OpenRequest, rows: Rows, payload: Sequence[Frame]) -> None:
        """Add rows to a request's stream; to be called before `committed` for rows and tokens of one message.

        Raises:
            RequestAborted: Earlier rows were lost with a connection, and the engine keeps no sent rows.
        """
        stream = request.stream
        if stream is None or rows.key not in stream.rows:
            return
        _put(stream.rows[rows.key], rows, payload)
        self._may_be_due(stream)

    def rest(
        self, request: OpenRequest, rows: list[Rows], payload: Sequence[Frame]
    ) -> tuple[list[Rows], Sequence[Frame]]:
        """Return the rows of an answer with the waiting rows before them, each key in one piece, and the frames.

        The stream is to be closed then.

        Raises:
            RequestAborted: As `committed_rows`.
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
        """Send the waiting tokens and rows that fit into the windows, in one message per client."""
        if not self._due:
            return
        by_peer: dict[bytes, list[OpenStream]] = {}
        for stream in self._due:
            by_peer.setdefault(stream.peer, []).append(stream)
        self._due.clear()
        for peer, streams in by_peer.items():
            tokens = [
                StreamedTokens(each.request_id, each.num_sent, each.waiting, each.waiting_text)
                for each in streams
                if each.waiting
            ]
            pieces = [(each.request_id, part) for each in streams for part in each.rows.values() if len(part)]
            rows = [RequestRows(request_id, part.rows(frame)) for frame, (request_id, part) in enumerate(pieces)]
            if self._send(peer, Tokens(tokens, rows), [part.data() for _, part in pieces]):
                for stream in streams:
                    stream.sent()

    def due(self) -> set[OpenStream]:
        """Return the streams with something to send."""
        return set(self._due)

    def _may_be_due(self, stream: OpenStream) -> None:
        if stream.can_send:
            self._due[stream] = None


def _put(pieces: RowPieces, rows: Rows, payload: Sequence[Frame]) -> None:
    """Append rows; raise `RequestAborted` if they do not follow the present ones."""
    try:
        pieces.put(rows, payload)
    except MissingRows as error:
        first, end = error.details["first"], error.details["end"]
        reason = f"rows [{first}, {end}) of {pieces.key!r} were lost with the connection to the engine; try again"
        raise RequestAborted(reason) from error
