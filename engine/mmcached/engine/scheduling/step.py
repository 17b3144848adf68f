"""A scheduled step is a value: the work of one step, by requests and keys. The server makes plans of it.

Order of work: drop `freed_keys`, encode, emit, run the chunks in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from mmcached.engine.hidden_states.tensor_prefix_index import NO_NEW_HASHES, NewBlockHashes
from mmcached.engine.steps.request import Request, ScheduledItem
from mmcached.wire.messages.worker import EmbedSpan


class ScheduledChunk(msgspec.Struct, frozen=True, gc=False):
    """Tokens `[start, start + num_tokens)` of one request. Without garbage collection: nothing refers back.

    Attributes:
        block_ids: the request's block table from position 0 on, long enough for the chunk; it grows later on.
        spans: places of encoder outputs among the token embeddings; positions count from the chunk's start.
        sample: true if the chunk ends at the last known token, so that the next one is wanted.
        new_hashes: hashes of the request's blocks that the prefix store does not have yet.
    """

    request: Request
    start: int
    num_tokens: int
    block_ids: Sequence[int]
    spans: Sequence[EmbedSpan]
    sample: bool
    new_hashes: NewBlockHashes = NO_NEW_HASHES

    @property
    def end(self) -> int:
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """Everything that one step computes.

    Attributes:
        encode: items whose output must be made, one per key.
        emit: items of "encode" requests whose output is returned.
        freed_keys: encoder outputs that workers drop.
        released: ids of requests whose rows the prefix store need not hold any more.
        row_epoch: epoch of the weights; in a new one the prefix store forgets everything.
    """

    step_id: int
    chunks: list[ScheduledChunk]
    encode: list[ScheduledItem]
    emit: list[ScheduledItem]
    freed_keys: list[str]
    released: Sequence[int] = ()
    row_epoch: int = 0

    def requests(self) -> list[Request]:
        """Return each request that takes part, once."""
        taking_part = [*(chunk.request for chunk in self.chunks), *(item.request for item in self.emit)]
        return list({request.request_id: request for request in taking_part}.values())

    def goals(self) -> list[tuple[Request, int]]:
        """Return each request that takes part, once, with its `progress` after the step."""
        goals = {chunk.request.request_id: (chunk.request, chunk.end) for chunk in self.chunks}
        goals |= {request.request_id: (request, input_id + 1) for request, input_id, _ in self.emit}
        return list(goals.values())

    def request_ids(self) -> list[int]:
        return [request.request_id for request in self.requests()]
