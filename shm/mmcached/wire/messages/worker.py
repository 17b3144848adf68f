"""An engine says these messages to its workers. A plan is complete: a worker keeps caches, but no requests."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mmcached.wire.errors import ErrorInfo
from mmcached.wire.handle import Count
from mmcached.wire.messages.parts import Inline, Message, Part, StoredItem, StoredOutput, Text, TokenId
from mmcached.wire.vocabulary import Modality


class Attach(Message, frozen=True):
    """Answer to `WorkerHello`: take plans of this engine, and of no other."""

    engine_incarnation: Count


class EncodeItem(Part, frozen=True):
    """Keep the encoder's output of one item in the encoder cache under `key`: encode it, or load it from the store.

    Attributes:
        tenant, store_epoch: of the record in the store that is made of it; epoch 0: none is.
        modality: of the file that it was made of.
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
        block_ids: the request's KV blocks from position 0 on, at least as many as the chunk needs.
        spans: encoder outputs that replace token embeddings.
        sample: the chunk ends at the last known token: return the next one.
        row_keys: of which the rows of positions `[first_row, end of the chunk)` are wanted; those before the chunk are
            in the tensor prefix store.
        block_hashes: digests of the request's blocks from number `first_block` on, as far as they are new.
        rows_name: names of records that are made of large parts of its rows begin so; "": none are made.
        tenant, store_epoch: of those.
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


class EmitEmbedding(Part, frozen=True):
    """Return encoder output `key` as item `index` of a request; or, if it is large, save it in the store and name it.

    Attributes:
        mm_hash, tenant, store_epoch: of the record in the store; epoch 0: none is made.
    """

    request_id: Count
    index: Count
    key: Text
    mm_hash: Text = ""
    tenant: Text = ""
    store_epoch: Count = 0


class StepPlan(Message, frozen=True):
    """One step. Order: drop `freed_keys`, let go of the rows of `released`, encode, emit, run the chunks in order.

    Another `row_epoch` than that of the plan before: all prefix rows come from weights that are no more; forget them.
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
    """Forget KV, encoder outputs and prefix rows: the engine's books were cleared."""

    engine_incarnation: Count


class Shutdown(Message, frozen=True):
    """Finish and exit with status 0."""

    engine_incarnation: Count


class ProbeWorker(Message, frozen=True):
    """Read a small item, whose frames follow if it is inline, and answer `WorkerProbed`."""

    engine_incarnation: Count
    worker_epoch: Count
    token: Count
    payload: StoredItem | Inline


class WorkerRefused(Message, frozen=True):
    """Answer to a hello that cannot be accepted: the worker logs the error and ends."""

    error: ErrorInfo


FromEngineToWorker = Attach | StepPlan | ClearCaches | Shutdown | ProbeWorker | WorkerRefused
