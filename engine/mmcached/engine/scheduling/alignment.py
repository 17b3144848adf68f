"""Keeps the shapes of a floating-point model's computations independent of cached prefixes and of other requests.

    prompt of 300 tokens, chunk_tokens 128    |-- 128 --|-- 128 --|- 44 -|  then each output token alone
    a hit of 240 tokens                       |== used =|
    shareable with other requests             |=========|=========|

A chunk of a prompt begins and ends at a multiple of `chunk_tokens`, or ends with the prompt; a prefix hit is used up to
such a multiple. Other requests may use whole chunks of a prompt only: of these tokens every computation has the same
shape. An output token was computed alone, but would be part of a chunk in a longer prompt. So `cached equals uncached`
bit for bit, on one device.

In some models the tokens of a picture attend to each other both ways, so no chunk may divide it: the chunk goes on to
the picture's end, and the next one ends at a multiple again. The first of them has no length of its own then, so the
hashes of its blocks cover the picture, and a hit is used up to a multiple outside of pictures:

    picture at 100 … 356     |------ 356 ------|- 28 -|-- 128 --|      used up to 384, and 512

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
    keeps_items_whole: bool = False

    def usable(self, request: Request, num_tokens: int) -> int:
        """Return the part of a prefix hit after which a chunk may begin."""
        if not self.chunk_tokens:
            return num_tokens
        place = num_tokens // self.chunk_tokens * self.chunk_tokens
        while self._undivided(request, place) != place:
            place -= self.chunk_tokens
        return place

    def end(self, request: Request, start: int, end: int) -> int:
        """Return the last place up to `end` where a chunk from `start` on may end; `start` if there is none."""
        if not self.chunk_tokens or end >= request.num_prompt_tokens:
            return end
        place = end // self.chunk_tokens * self.chunk_tokens
        while place > start and self._undivided(request, place) > end:
            place -= self.chunk_tokens
        return self._undivided(request, place) if place > start else start

    def limit_sharing(self, request: Request, block_size: int) -> None:
        """Leave only the tokens of whole chunks of a new request's prompt for others to use; without chunks, all."""
        if self.chunk_tokens:
            request.num_shareable_tokens = self.usable(request, request.num_prompt_tokens)
            del request.block_hashes[request.num_shareable_tokens // block_size :]

    def _undivided(self, request: Request, place: int) -> int:
        """Return the place itself, or the end of the item that would be divided there."""
        if self.keeps_items_whole:
            for _, feature in request.features_in(place - 1, place):
                return max(place, feature.offset + feature.length)
        return place
