"""Computes the block hashes of requests on demand and caches them until the request ends."""

from __future__ import annotations

from mmcached.cache.hashing.block_hash import BlockHasher
from mmcached.engine.steps.request import Request, RequestId


class RequestHashes:
    """Block hashes by request id, until `forget_request`; each also covers `num_lookahead_tokens` later tokens."""

    def __init__(self, hasher: BlockHasher, block_size: int, num_lookahead_tokens: int = 0) -> None:
        self.hasher = hasher
        self.block_size = block_size
        self.num_lookahead_tokens = num_lookahead_tokens
        self.by_request: dict[RequestId, list[bytes]] = {}

    def of(self, request: Request) -> list[bytes]:
        """Return the hashes of all full blocks that may be shared.

        Raises `InvalidRequest` if one contains a placeholder token id.
        """
        block_hashes = request.block_hashes
        if (request.num_tokens - self.num_lookahead_tokens) // self.block_size > len(block_hashes):
            self.extend(request)
        self.by_request[request.request_id] = block_hashes
        return block_hashes

    def extend(self, request: Request) -> None:
        """Append the missing hashes to `request.block_hashes` without registering the request; raises as `of`."""
        most = None if request.num_shareable_tokens is None else request.num_shareable_tokens // self.block_size
        if most is not None and len(request.block_hashes) >= most:
            return
        self.hasher.extend_block_hashes(request, self.block_size, self.num_lookahead_tokens)
        if most is not None:
            del request.block_hashes[most:]

    def forget_request(self, request: Request) -> None:
        self.by_request.pop(request.request_id, None)
        request.block_hashes = []
