"""What a worker receives from its engine. A plan is complete: a worker keeps caches, but no requests."""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.wire.errors import ErrorInfo
from mmcached.wire.handle import Count, Handle, LeaseId, RingAnnouncement
from mmcached.wire.messages.parts import Inline, Message, Part, Text, TokenId


class Attach(Message, frozen=True):
    """Attach to the ring under the engine's row, or, with `announcement` None, expect inline items only."""

    engine_nonce: Count
    announcement: RingAnnouncement | None
    row: Count
    row_nonce: Count


class EncodeItem(Part, frozen=True):
    """Encode one item and keep the result in the encoder cache under `key`."""

    key: Text
    mm_hash: Text
    num_embeds: Count
    payload: Handle | Inline
    lease: LeaseId | None = None


class EmbedSpan(Part, frozen=True):
    """Rows `[start, start + length)` of encoder output `key` replace the chunk's tokens from index `position` on."""

    key: Text
    position: Count
    start: Count
    length: Count


class RunChunk(Part, frozen=True):
    """Compute `token_ids` of one request, at positions `num_computed_tokens …`.

    Attributes:
        block_ids: the request's KV blocks from position 0 on, at least as many as the chunk needs.
        spans: where encoder outputs replace token embeddings.
        sample: the chunk ends at the last known token: return the next one.
        want_hidden_states: return this chunk's hidden states, merged with the cached prefix if `is_new_hit`.
        is_new_hit: first chunk of this request (or of its resumption) after a prefix hit of `num_computed_tokens`.
    """

    request_id: Count
    token_ids: list[TokenId]
    num_computed_tokens: Count
    block_ids: Sequence[Count]
    spans: Sequence[EmbedSpan]
    sample: bool
    want_hidden_states: bool
    is_new_hit: bool


class EmitEmbedding(Part, frozen=True):
    """Return encoder output `key` as item `index` of a request."""

    request_id: Count
    index: Count
    key: Text


class StepPlan(Message, frozen=True):
    """One step. Order: drop `freed_keys`, encode, emit, run the chunks in order."""

    engine_nonce: Count
    worker_epoch: Count
    step: Count
    freed_keys: list[Text]
    encode: list[EncodeItem]
    emit: list[EmitEmbedding]
    chunks: list[RunChunk]


class ClearCaches(Message, frozen=True):
    """Forget KV, encoder outputs and prefix rows: the engine's books were cleared."""

    engine_nonce: Count


class Shutdown(Message, frozen=True):
    """Finish and exit with status 0."""

    engine_nonce: Count


class ProbeWorker(Message, frozen=True):
    """Read a small item, whose frames follow if it is inline, and answer `WorkerProbed`."""

    engine_nonce: Count
    worker_epoch: Count
    token: Count
    payload: Handle | Inline


class WorkerRefused(Message, frozen=True):
    """Answer to a hello that cannot be accepted: the worker logs the error and ends."""

    error: ErrorInfo


FromEngineToWorker = Attach | StepPlan | ClearCaches | Shutdown | ProbeWorker | WorkerRefused
