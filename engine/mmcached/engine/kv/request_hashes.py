"""Keeps the block hashes of requests: made when they are asked for, forgotten when the request has ended.

Knows nothing of blocks or of what is published.
"""

from __future__ import annotations

from mmcached.cache.hashing.block_hash import BlockHasher
from mmcached.engine.steps.request import Request


class RequestHashes:
    """The block hashes of all requests that were looked up or published.

    Args:
        block_size: tokens under one block hash.
        num_lookahead_tokens: tokens behind a block that its hash covers too.

    Attributes:
        by_request: block hashes by request id, until `forget`.
    """

    def __init__(self, hasher: BlockHasher, block_size: int, num_lookahead_tokens: int = 0) -> None:
        self.hasher = hasher
        self.block_size = block_size
        self.num_lookahead_tokens = num_lookahead_tokens
        self.by_request: dict[int, list[bytes]] = {}

    def of(self, request: Request) -> list[bytes]:
        """Return the hashes of all blocks of a request that are full, as far as its tokens are known.

        Raises:
            InvalidRequest: a token id in one of them is a placeholder.
        """
        block_hashes = request.block_hashes
        if (request.num_tokens - self.num_lookahead_tokens) // self.block_size > len(block_hashes):
            self.extend(request)
        self.by_request[request.request_id] = block_hashes
        return block_hashes

    def extend(self, request: Request) -> None:
        """Make the hashes that are missing in `request.block_hashes`, and keep nothing here.

        Raises:
            InvalidRequest: as `of`.
        """
        self.hasher.extend_block_hashes(request, self.block_size, self.num_lookahead_tokens)

    def forget(self, request: Request) -> None:
        """Forget the hashes of a request; they would be made anew."""
        self.by_request.pop(request.request_id, None)
        request.block_hashes = []
