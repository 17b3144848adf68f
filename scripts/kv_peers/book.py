"""A manager in a state that can be measured: its pool full of published content, some requests running."""

from __future__ import annotations

import secrets
from itertools import count
from typing import Any

from kv_peers.sides import BLOCK_SIZE, PLAIN, Kind, Side

REQUEST_BLOCKS = 64
PROMPT_TOKENS = 256
_DIGEST_BYTES = 32


class Book:
    """A manager and what was put into it.

    Args:
        num_blocks: of each group.

    Attributes:
        known: requests of `REQUEST_BLOCKS` blocks whose content is published, up to `NUM_KNOWN`, spread over the pool.
        step_ids: one for each step that somebody opens.
    """

    NUM_KNOWN = 64

    def __init__(self, side: Side, num_blocks: int, kind: Kind = PLAIN) -> None:
        self.side = side
        self.num_blocks = num_blocks
        self.manager = side.manager(num_blocks * len(kind.groups), kind)
        self.known: list[Any] = []
        self.step_ids = count(1)

    @classmethod
    def full(cls, side: Side, num_blocks: int, kind: Kind = PLAIN) -> Book:
        """Return one where every free block has published content, so that a new block evicts."""
        book = cls(side, num_blocks, kind)
        num_requests = num_blocks // REQUEST_BLOCKS + 1
        stride = max(1, num_requests // cls.NUM_KNOWN)
        for index in range(num_requests):
            request = book.request(REQUEST_BLOCKS)
            book.publish(request)
            book.manager.take_events()
            # The first is gone, in part, when the pool is full.
            if index and index % stride == 0 and len(book.known) < cls.NUM_KNOWN:
                book.known.append(request)
        return book

    def request(self, num_blocks: int, *, num_tokens: int | None = None) -> Any:
        """Return a request whose content nobody has; it holds nothing yet."""
        drawn = secrets.token_bytes(num_blocks * _DIGEST_BYTES)
        digests = [drawn[start : start + _DIGEST_BYTES] for start in range(0, len(drawn), _DIGEST_BYTES)]
        return self.side.request([0] * (num_tokens or num_blocks * BLOCK_SIZE), digests)

    def publish(self, request: Any) -> None:
        """Compute a request whole, and free it."""
        self.manager.allocate_slots(request, request.num_tokens)
        self.manager.free(request)

    def start_decoding(self, num_running: int, num_steps: int) -> list[Any]:
        """Return requests whose prompts have been computed. The tokens of the steps to come are known already.

        Raises:
            RuntimeError: they do not fit.
        """
        num_tokens = PROMPT_TOKENS + num_steps
        requests = [self.request(num_tokens // BLOCK_SIZE, num_tokens=num_tokens) for _ in range(num_running)]
        for request in requests:
            if self.manager.allocate_slots(request, PROMPT_TOKENS) is None:
                raise RuntimeError(f"{num_running} requests do not fit into {self.num_blocks} blocks")
            request.num_computed_tokens = PROMPT_TOKENS
        return requests
