"""Data classes of a scheduled step; workers drop `freed_keys`, encode, emit, then run the chunks in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from mmcached.engine.hidden_states.tensor_prefix_index import NO_NEW_HASHES, NewBlockHashes
from mmcached.engine.steps.request import Request, ScheduledItem
from mmcached.wire.messages.worker import EmbedSpan


class ScheduledChunk(msgspec.Struct, frozen=True, gc=False):
    """Tokens `[start, start + num_tokens)` of one request. `gc=False`: it is in no reference cycle.

    Attributes:
        block_ids: the request's live block table from position 0 on, long enough for the chunk.
        spans: places of encoder outputs among the token embeddings; positions count from the chunk's start.
        sample: whether the chunk ends at the last known token, so that the next token is sampled.
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
    """Work of one step.

    Attributes:
        encode: items to be encoded, one per key.
        emit: items of "encode" requests whose output is returned.
        freed_keys: encoder outputs that workers drop.
        released: ids of requests whose rows the prefix store may drop.
        row_epoch: epoch of the weights; the prefix store is cleared when it changes.
    """

    step_id: int
    chunks: list[ScheduledChunk]
    encode: list[ScheduledItem]
    emit: list[ScheduledItem]
    freed_keys: list[str]
    released: Sequence[int] = ()
    row_epoch: int = 0

    def requests(self) -> list[Request]:
        taking_part = [*(chunk.request for chunk in self.chunks), *(item.request for item in self.emit)]
        return list({request.request_id: request for request in taking_part}.values())

    def goals(self) -> list[tuple[Request, int]]:
        """Return each request of the step once, with its `progress` after the step."""
        goals = {chunk.request.request_id: (chunk.request, chunk.end) for chunk in self.chunks}
        goals |= {request.request_id: (request, input_id + 1) for request, input_id, _ in self.emit}
        return list(goals.values())

    def request_ids(self) -> list[int]:
        return [request.request_id for request in self.requests()]
