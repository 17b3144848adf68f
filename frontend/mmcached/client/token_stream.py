"""One streamed generation as its caller sees it: what has come and was not taken yet. No sockets, threads or loops.

    open --(put: tokens)--> open --(answered)--> done: what is left, then the generation
                             |
                             +--(failed)--> what is left, then the error

Tokens come in pieces, each with the position of its first one; the answer has all of them. Invariant: each token is
handed out once, in order; an answer that contradicts what was handed out is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mmcached.client.conversation import expect
from mmcached.client.results import Generation, generation_from
from mmcached.wire.channels import Frame
from mmcached.wire.errors import LocalProtocolError, MmcachedError, RemoteProtocolError
from mmcached.wire.messages.client import Generated, StreamedTokens, ToClient
from mmcached.wire.messages.frontend import Generate, TokensTaken


class TokenStream:
    """What has come of one generation.

    Args:
        request: as it was sent; its window is the service's to keep.
        on_news: called when there is something to take.
    Attributes:
        is_open: the service may still compute it.
    """

    def __init__(self, request: Generate, on_news: Callable[[], None] = lambda: None) -> None:
        self.is_open = True
        self._request = request
        self._on_news = on_news
        self._tokens: list[int] = []
        self._num_taken = 0
        self._num_told = 0
        self._end: tuple[Generated, Sequence[Frame]] | MmcachedError | None = None

    @property
    def request_id(self) -> int:
        return self._request.request_id

    @property
    def has_news(self) -> bool:
        """Whether `take` has something to hand out, or to raise."""
        return self._num_taken < len(self._tokens) or self.is_over

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        return self._end is not None

    # ---- what comes

    def put(self, piece: StreamedTokens) -> None:
        """Take in a piece; what came before is left out. One that does not follow is the end: it is never guessed."""
        if self.is_over:
            return
        if piece.first > len(self._tokens):
            self._end = RemoteProtocolError(f"tokens from {piece.first} on, but only {len(self._tokens)} have come")
        else:
            self._tokens += piece.token_ids[len(self._tokens) - piece.first :]
        self._on_news()

    def answer(self, message: ToClient, payload: Sequence[Frame]) -> None:
        """Take in the answer: the generation with all its tokens, or why there is none."""
        self.is_open = False
        if self.is_over:
            return
        try:
            generated = expect(message, Generated)
        except MmcachedError as error:
            self.fail(error)
            return
        if generated.token_ids[: len(self._tokens)] != self._tokens:
            self.fail(RemoteProtocolError("the answer has other tokens than those that came before it", "token_ids"))
            return
        self._tokens = list(generated.token_ids)
        self._end = generated, payload
        self._on_news()

    def fail(self, error: MmcachedError) -> None:
        """Nothing more will come, and why: the service knows it no more. The first end counts."""
        self.is_open = False
        self._end = self._end or error
        self._on_news()

    # ---- what is taken

    def take(self) -> list[int] | Generation:
        """Return the tokens that were not taken yet; if there are none, the generation. Call it if there are news.

        Raises:
            MmcachedError: it ended with this.
        """
        tokens = self._tokens[self._num_taken :]
        self._num_taken = len(self._tokens)
        if tokens:
            return tokens
        if isinstance(self._end, tuple):
            return generation_from(*self._end)
        raise self._end or LocalProtocolError("nothing has come yet")

    def take_receipt(self) -> TokensTaken | None:
        """Return what to tell the service, if it is time: that so many tokens were taken, and as many more may come."""
        if self.is_over or self._num_taken - self._num_told < max(1, self._request.stream_window // 2):
            return None
        self._num_told = self._num_taken
        return TokensTaken(self._request.client_id, self._request.request_id, self._num_taken)
