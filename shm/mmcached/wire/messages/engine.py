"""Messages to an engine: from the frontend on one socket, from its workers on another."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from mmcached.wire.errors import ErrorInfo
from mmcached.wire.handle import Count
from mmcached.wire.messages.parts import (
    EncoderForm,
    Feature,
    Inline,
    Message,
    Part,
    Priority,
    RequestRows,
    RowsWanted,
    Sampling,
    SavedRows,
    StoredItem,
    Tensor,
    Text,
    TokenId,
    TokenLogprob,
    Traceparent,
)

BlockHash = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
"""Digest of a full block of a prompt and of all before it."""

# ---- from the frontend


class Greeted(Message, frozen=True):
    """Answer to `EngineHello`.

    Attributes:
        session: New for each connection that the frontend accepts. When it changes, all requests that were sent to this
            engine before have ended.
    """

    session: Count


class Refused(Message, frozen=True):
    """Answer to a hello that cannot be accepted, such as one with another configuration."""

    error: ErrorInfo


class AddRequest(Message, frozen=True):
    """A complete request: its tokens with all placeholders, its items with their payloads.

    Attributes:
        kind: "generate" runs the decoder; "encode" only returns the embeddings of the items.
        mirror_seq: Number of a message that changes the sender's mirror of the receiver cache; after a gap the receiver
            clears its cache first. 0: no mirror.
        is_streamed: Send tokens as they commit.
        store_epoch: Epoch of the store in which encoder outputs are saved; 0: they are not saved.
        takes_keys: See `Encode` and `Generate`.
        traceparent: Trace context of the frontend's span.
        block_hashes: Digests of 32 bytes of the prompt's first full blocks, as far as the frontend has computed them;
            the engine computes the others.
        sampling: How tokens are chosen, with a seed; None: the most likely ones.
    """

    request_id: Count
    kind: Literal["generate", "encode"]
    prompt_token_ids: list[TokenId]
    features: list[Feature]
    max_tokens: Count
    rows: RowsWanted | None
    tenant: Text = ""
    mirror_seq: Count = 0
    is_streamed: bool = False
    priority: Priority = 0
    store_epoch: Count = 0
    takes_keys: bool = False
    traceparent: Traceparent = ""
    block_hashes: list[BlockHash] = msgspec.field(default_factory=list)
    sampling: Sampling | None = None


class AbortRequest(Message, frozen=True):
    """End a request without an answer; an unknown id changes nothing."""

    request_id: Count


class ProbeEngine(Message, frozen=True):
    """Let every worker read a small item and report its checksum."""

    token: Count
    payload: StoredItem | Inline


class FlushEngine(Message, frozen=True):
    """Make all cached content, and content being computed, unreachable; running requests go on."""

    token: Count


FromFrontend = Greeted | Refused | AddRequest | AbortRequest | ProbeEngine | FlushEngine

# ---- from workers


class WorkerHello(Message, frozen=True):
    """First message of a worker. `worker_epoch` is new for each process."""

    rank: Annotated[int, msgspec.Meta(ge=0, le=15)]
    worker_epoch: Count
    config_digest: Text
    device: Text


class WorkerAttached(Message, frozen=True):
    """The worker takes plans of this engine from now on.

    Attributes:
        embedding_bytes: Measured bytes of one embedding in its encoder cache, all outputs together; 0: unknown.
        encoder_fingerprint: Names everything besides the item that its encoder's output depends on.
        encoder: Inputs and outputs of its encoder.
    """

    worker_epoch: Count
    engine_incarnation: Count
    embedding_bytes: Count = 0
    encoder_fingerprint: Text = ""
    encoder: EncoderForm | None = None


class Sampled(Part, frozen=True):
    """The next token of a request; `logprobs` if they are wanted: its own, then those of the most likely tokens."""

    request_id: Count
    token_id: TokenId
    logprobs: list[TokenLogprob] = msgspec.field(default_factory=list)


class RowsMissing(Part, frozen=True):
    """The prefix store lacks the rows `[first, end)` of a key that a request wants: the request must start over."""

    request_id: Count
    key: Text
    first: Count
    end: Count


PrefixReport = dict[bytes, dict[Text, Count]]
"""By digest of a block: the number of its first rows in the prefix store, by key; {} for none."""


class ItemEmbedding(Part, frozen=True):
    """One output of the encoder for item `index` of a request."""

    request_id: Count
    index: Count
    name: Text
    tensor: Tensor


class ItemSaved(Part, frozen=True):
    """The encoder outputs of item `index` of a request are being put into the store, under `key`."""

    request_id: Count
    index: Count
    key: Text


class RequestSavedRows(Part, frozen=True):
    """Rows of one request and key that are being put into the store."""

    request_id: Count
    rows: SavedRows


class StepOutput(Message, frozen=True):
    """The results of a step. `digest` is equal on all ranks.

    Attributes:
        rows: Rows of each chunk, and wanted rows before it. Rank 0 alone fills this field, `embeddings`, `saved`,
            `saved_rows`, `prefix_report` and `missing`.
        encoder_keys: Content of the worker's encoder cache after the step; None unless `debug_check_workers`.
    """

    engine_incarnation: Count
    worker_epoch: Count
    step: Count
    digest: bytes
    sampled: list[Sampled]
    rows: list[RequestRows]
    embeddings: list[ItemEmbedding]
    encoder_keys: list[Text] | None = None
    prefix_report: PrefixReport = msgspec.field(default_factory=dict)
    missing: list[RowsMissing] = msgspec.field(default_factory=list)
    saved: list[ItemSaved] = msgspec.field(default_factory=list)
    saved_rows: list[RequestSavedRows] = msgspec.field(default_factory=list)


class StepFailed(Message, frozen=True):
    """The worker could not run the step and has discarded its results; `prefix_report` has its evictions."""

    engine_incarnation: Count
    worker_epoch: Count
    step: Count
    error: ErrorInfo
    prefix_report: PrefixReport = msgspec.field(default_factory=dict)


class WorkerProbed(Message, frozen=True):
    """Answer to a probe: hex digest of the item's bytes, as this worker reads them; its view is released."""

    engine_incarnation: Count
    worker_epoch: Count
    token: Count
    checksum: Text


FromWorker = WorkerHello | WorkerAttached | StepOutput | StepFailed | WorkerProbed
