"""Received pieces of one streamed generation that were not taken yet.

    open --(put: tokens, put_rows: rows)--> open --(answered)--> done: the remaining pieces, then the generation
                                             |
                                             +--(failed)--> the remaining pieces, then the error

Each piece carries the position of its first token or row. The answer has all tokens, and the rows that no piece has
brought. Rows are taken before tokens, so that the rows of a step never come after its tokens; rows of the answer are in
the generation. Invariant: each token, and each row of each key, is returned once, in order; an answer that contradicts
earlier pieces is an error, and so is a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from mmcached.client.results import NewTokens, Piece, RowRange, expect, generation_from, row_range_from
from mmcached.wire.errors import LocalProtocolError, MissingRows, MmcachedError, PeerGone, RemoteProtocolError
from mmcached.wire.messages.client import Generated, ToClient
from mmcached.wire.messages.frontend import ROW_WINDOW_BYTES, Generate, TokensTaken
from mmcached.wire.messages.parts import RequestRows, Rows, StreamedTokens
from mmcached.wire.row_pieces import RowPieces
from mmcached.wire.sockets.frames import Frame

News = tuple[ToClient | RequestRows | StreamedTokens, Sequence[Frame]]
"""A message or piece for one call or stream, and its payload frames."""


class TokenStream:
    """The pieces of one generation.

    Args:
        request: The request to send; the service enforces its window.
        answer_index: Number of the answer, which its pieces get.
        row_window_bytes: Maximum bytes of unacknowledged rows.

    Attributes:
        request: As given.
        is_open: Whether the service may still compute it.
    """

    def __init__(self, request: Generate, *, answer_index: int = 0, row_window_bytes: int = ROW_WINDOW_BYTES) -> None:
        self.request = request
        self.is_open = True
        self._answer_index = answer_index
        self._row_window_bytes = row_window_bytes
        self._tokens: list[int] = []
        self._text = ""
        self._num_characters_taken = 0
        self._num_taken = 0
        self._num_told = 0
        wanted = request.rows if request.rows is not None and request.rows.delivery == "delta" else None
        self._rows = {} if wanted is None else {key: RowPieces(key, wanted.first) for key in wanted.keys}
        self._num_row_bytes_taken = 0
        self._num_row_bytes_told = 0
        self._end: tuple[Generated, Sequence[Frame]] | MmcachedError | None = None

    @property
    def request_id(self) -> int:
        return self.request.request_id

    @property
    def has_begun(self) -> bool:
        """Whether a token was received."""
        return bool(self._tokens)

    @property
    def has_news(self) -> bool:
        """Whether `take` can return a piece or raise the final error."""
        return self._has_tokens or self.is_over or any(map(len, self._rows.values()))

    @property
    def is_over(self) -> bool:
        """Whether no further piece will be received."""
        return self._end is not None

    # ---- receiving

    def feed(self, news: News | MmcachedError) -> None:
        """Add a message or error that a link has queued for this stream."""
        if isinstance(news, MmcachedError):
            self.fail(news)
            return
        match news[0]:
            case RequestRows() as rows:
                self.put_rows(rows, news[1])
            case StreamedTokens() as piece:
                self.put(piece)
            case message:
                self.answer(message, news[1])

    def put(self, piece: StreamedTokens) -> None:
        """Add tokens, without those received before; a gap ends the stream with an error."""
        if self.is_over:
            return
        if piece.first > len(self._tokens):
            self._end = RemoteProtocolError(f"tokens from {piece.first} on, but only {len(self._tokens)} have come")
        elif piece.first + len(piece.token_ids) > len(self._tokens):
            self._tokens += piece.token_ids[len(self._tokens) - piece.first :]
            self._text += piece.text

    def put_rows(self, piece: RequestRows, payload: Sequence[Frame]) -> None:
        """Add rows as `put` adds tokens; call it before `put` for the pieces of one message."""
        if self.is_over:
            return
        try:
            _put(self._rows, piece.rows, payload)
        except RemoteProtocolError as error:
            self._end = error

    def answer(self, message: ToClient, payload: Sequence[Frame]) -> None:
        """Add the answer: the generation with all tokens and the remaining rows, or the error."""
        self.is_open = False
        if self.is_over:
            return
        try:
            generated = expect(message, Generated)
            if generated.token_ids[: len(self._tokens)] != self._tokens:
                raise RemoteProtocolError("the answer has other tokens than those that came before it", "token_ids")
            text = generated.text or ""
            if not text.startswith(self._text):
                raise RemoteProtocolError("the answer has another text than that which came before it", "text")
            self._end = self._without_what_came(generated, payload)
            self._tokens, self._text = list(generated.token_ids), text
        except MmcachedError as error:
            self._end = error

    def fail(self, error: MmcachedError) -> None:
        """End the stream with an error; the first end counts. Only after a lost connection the request may go on."""
        self.is_open = self.is_open and isinstance(error, PeerGone)
        self._end = self._end or error

    # ---- taking

    def take(self) -> Piece:
        """Return the next piece: rows of a key, else tokens, else the generation.

        Call it only if `has_news`.

        Raises:
            MmcachedError: The error that has ended the generation.
        """
        for pieces in self._rows.values():
            if len(pieces):
                return self._take_rows(pieces)
        if self._has_tokens:
            tokens = NewTokens(
                self._tokens[self._num_taken :], self._text[self._num_characters_taken :], self._answer_index
            )
            self._num_taken, self._num_characters_taken = len(self._tokens), len(self._text)
            return tokens
        if isinstance(self._end, tuple):
            return replace(generation_from(*self._end), answer_index=self._answer_index)
        raise self._end or LocalProtocolError("nothing has come yet")

    @property
    def _has_tokens(self) -> bool:
        return self._num_taken < len(self._tokens) or self._num_characters_taken < len(self._text)

    def take_receipt(self) -> TokensTaken | None:
        """Return the acknowledgement of taken tokens and rows, once half of a window was taken; else None."""
        num_tokens = self._num_taken - self._num_told
        num_row_bytes = self._num_row_bytes_taken - self._num_row_bytes_told
        is_time = num_tokens >= max(1, self.request.stream_window // 2)
        if self.is_over or not (is_time or num_row_bytes >= max(1, self._row_window_bytes // 2)):
            return None
        self._num_told, self._num_row_bytes_told = self._num_taken, self._num_row_bytes_taken
        return TokensTaken(self.request.client_id, self.request_id, self._num_taken, self._num_row_bytes_taken)

    def _take_rows(self, pieces: RowPieces) -> RowRange:
        found = replace(row_range_from(pieces.rows(0), [pieces.data()]), answer_index=self._answer_index)
        self._num_row_bytes_taken += pieces.num_bytes
        pieces.hand_on()
        return found

    def _without_what_came(self, generated: Generated, payload: Sequence[Frame]) -> tuple[Generated, Sequence[Frame]]:
        """Return an answer without the rows that were received in pieces."""
        if not self._rows:
            return generated, payload
        left = {key: RowPieces(key, pieces.end) for key, pieces in self._rows.items()}
        for rows in generated.rows:
            _put(left, rows, payload)
        lacking = left.keys() - {rows.key for rows in generated.rows}
        if lacking:
            raise RemoteProtocolError(f"the answer has no rows of {sorted(lacking)}", "rows")
        parts = [pieces.rows(frame) for frame, pieces in enumerate(left.values())]
        return msgspec.structs.replace(generated, rows=parts), [pieces.data() for pieces in left.values()]


def _put(pieces: dict[str, RowPieces], rows: Rows, payload: Sequence[Frame]) -> None:
    if rows.key not in pieces:
        raise RemoteProtocolError(f"rows of {rows.key!r}, wanted are {list(pieces)}", "rows.key")
    try:
        pieces[rows.key].put(rows, payload)
    except MissingRows as error:
        reason = f"rows of {rows.key!r} from {rows.first} on, but only those before {pieces[rows.key].end} have come"
        raise RemoteProtocolError(reason, "rows.first") from error
