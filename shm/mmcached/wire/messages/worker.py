"""Messages from an engine to its workers. A plan is complete: a worker keeps caches, but no requests."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mmcached.wire.errors import ErrorInfo
from mmcached.wire.handle import Count
from mmcached.wire.messages.parts import Inline, Message, Part, Sampling, StoredItem, StoredOutput, Text, TokenId
from mmcached.wire.vocabulary import Modality


class Attach(Message, frozen=True):
    """Answer to `WorkerHello`: take plans of this engine only."""

    engine_incarnation: Count


class EncodeItem(Part, frozen=True):
    """Keep the encoder's output of one item in the encoder cache under `key`: encode it, or load it from the store.

    Attributes:
        tenant, store_epoch: Tenant and epoch for saving the output in the store; epoch 0: it is not saved.
        modality: Modality of the item's file.
    """

    key: Text
    mm_hash: Text
    num_embeds: Count
    payload: StoredItem | Inline | StoredOutput
    tenant: Text = ""
    store_epoch: Count = 0
    modality: Modality = "image"


class EmbedSpan(Part, frozen=True):
    """Rows `[start, start + length)` of encoder output `key` replace the chunk's tokens from index `position` on."""

    key: Text
    position: Count
    start: Count
    length: Count


class RunChunk(Part, frozen=True):
    """Compute `token_ids` of one request, at positions `num_computed_tokens …`.

    Attributes:
        block_ids: The request's KV blocks from position 0 on, at least as many as the chunk needs.
        spans: Encoder outputs that replace token embeddings.
        sample: The chunk ends at the last known token: return the next token.
        row_keys: Keys whose rows of positions `[first_row, end of the chunk)` are wanted; rows before the chunk are in
            the tensor prefix store.
        block_hashes: Digests of the request's new blocks from number `first_block` on.
        rows_name: Prefix of the names of records made of large parts of its rows; "": none are made.
        tenant, store_epoch: Tenant and epoch of those records.
        num_prompt_tokens: Tokens of the request's prompt; later ones were generated.
        sampling: How the next token is chosen, with a seed; None: the most likely one.
        seen: All token ids of the request, once each, for a repetition penalty.
    """

    request_id: Count
    token_ids: list[TokenId]
    num_computed_tokens: Count
    block_ids: Sequence[Count]
    spans: Sequence[EmbedSpan]
    sample: bool
    row_keys: Sequence[Text]
    first_row: Count
    first_block: Count
    block_hashes: Sequence[bytes]
    rows_name: Text = ""
    tenant: Text = ""
    store_epoch: Count = 0
    num_prompt_tokens: Count = 0
    sampling: Sampling | None = None
    seen: list[TokenId] = msgspec.field(default_factory=list)


class EmitEmbedding(Part, frozen=True):
    """Return encoder output `key` as item `index` of a request; a large one may be saved in the store and named.

    Attributes:
        mm_hash, tenant, store_epoch: Key, tenant and epoch of the record in the store; epoch 0: it is not saved.
    """

    request_id: Count
    index: Count
    key: Text
    mm_hash: Text = ""
    tenant: Text = ""
    store_epoch: Count = 0


class StepPlan(Message, frozen=True):
    """One step. Order: drop `freed_keys`, drop the rows of `released`, encode, emit, run the chunks in order.

    A changed `row_epoch` means that all prefix rows come from old weights: drop them.
    """

    engine_incarnation: Count
    worker_epoch: Count
    step: Count
    freed_keys: list[Text]
    encode: list[EncodeItem]
    emit: list[EmitEmbedding]
    chunks: list[RunChunk]
    released: list[Count] = msgspec.field(default_factory=list)
    row_epoch: Count = 0


class ClearCaches(Message, frozen=True):
    """Drop KV blocks, encoder outputs and prefix rows: the engine's records of them were cleared."""

    engine_incarnation: Count


class Shutdown(Message, frozen=True):
    engine_incarnation: Count


class ProbeWorker(Message, frozen=True):
    """Read a small item, followed by its frames if it is inline, and answer `WorkerProbed`."""

    engine_incarnation: Count
    worker_epoch: Count
    token: Count
    payload: StoredItem | Inline


class WorkerRefused(Message, frozen=True):
    """Answer to a hello that cannot be accepted: the worker logs the error and ends."""

    error: ErrorInfo


FromEngineToWorker = Attach | StepPlan | ClearCaches | Shutdown | ProbeWorker | WorkerRefused
