"""Keeps the shapes of a floating-point model's computations independent of cached prefixes and of other requests.

    prompt of 300 tokens, chunk_tokens 128    |-- 128 --|-- 128 --|- 44 -|  then each output token alone
    a hit of 240 tokens                       |== used =|
    shareable with other requests             |=========|=========|

A chunk of a prompt begins and ends at a multiple of `chunk_tokens`, or ends with the prompt; a prefix hit is used up to
such a multiple. Other requests may use whole chunks of a prompt only: of these tokens every computation has the same
shape. An output token was computed alone, but would be part of a chunk in a longer prompt. So `cached equals uncached`
bit for bit, on one device.

A scheduled chunk may span several chunks, and several output tokens of a request that starts over; the worker computes
them one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

from mmcached.engine.steps.request import Request


@dataclass(frozen=True, slots=True)
class Alignment:
    """Where chunks may begin and end; with `chunk_tokens` 0, as for the reference model, anywhere."""

    chunk_tokens: int

    def usable(self, num_tokens: int) -> int:
        """Return the part of a prefix hit after which a chunk may begin."""
        return num_tokens // self.chunk_tokens * self.chunk_tokens if self.chunk_tokens else num_tokens

    def end(self, request: Request, start: int, end: int) -> int:
        """Return the last place up to `end` where a chunk from `start` on may end; `start` if there is none."""
        if not self.chunk_tokens or end >= request.num_prompt_tokens:
            return end
        return max(start, self.usable(end))

    def limit_sharing(self, request: Request, block_size: int) -> None:
        """Leave only the tokens of whole chunks of a new request's prompt for others to use; without chunks, all."""
        if self.chunk_tokens:
            request.num_shareable_tokens = self.usable(request.num_prompt_tokens)
            del request.block_hashes[request.num_shareable_tokens // block_size :]
