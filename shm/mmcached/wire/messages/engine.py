"""An engine receives these messages: from the frontend on one socket, from its workers on another."""

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
    SavedRows,
    StoredItem,
    Tensor,
    Text,
    TokenId,
    Traceparent,
)

BlockHash = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
"""Digest of a full block of a prompt and of all before it."""

# ---- from the frontend


class Greeted(Message, frozen=True):
    """Answer to `EngineHello`.

    Attributes:
        session: new for each connection that the frontend accepts. Another one than before: the frontend, or another
            one after it, has ended all requests that it had sent to this engine.
    """

    session: Count


class Refused(Message, frozen=True):
    """Answer to a hello that cannot be accepted, such as one with another configuration."""

    error: ErrorInfo


class AddRequest(Message, frozen=True):
    """A request, complete: its tokens with all placeholders, its items with where they lie.

    `kind` "generate" runs the decoder; "encode" only returns the embeddings of the items. `mirror_seq` numbers the
    messages that move the sender's mirror of the receiver cache: after any but the next number the receiver clears
    first. 0 = no mirror. `is_streamed`: its tokens are wanted as they commit. `store_epoch`: of the store, in which
    what is encoded for it is saved; 0: it is not. `takes_keys`: see `Encode`, `Generate`. `traceparent`: of the
    frontend's span. `block_hashes`: 32 bytes each, of the prompt's first full blocks, as far as the frontend has made
    them; the engine makes the others.
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


class AbortRequest(Message, frozen=True):
    """End a request without an answer; an unknown id changes nothing."""

    request_id: Count


class ProbeEngine(Message, frozen=True):
    """Let every worker read a small item and tell its checksum."""

    token: Count
    payload: StoredItem | Inline


class FlushEngine(Message, frozen=True):
    """Make everything unreachable that is cached or being computed; requests that run go on."""

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
        embedding_bytes: of one embedding in its encoder cache, all outputs together, as it has measured; 0: unknown.
        encoder_fingerprint: names all that its encoder's output depends on beside the item.
        encoder: what its encoder takes and gives.
    """

    worker_epoch: Count
    engine_incarnation: Count
    embedding_bytes: Count = 0
    encoder_fingerprint: Text = ""
    encoder: EncoderForm | None = None


class Sampled(Part, frozen=True):
    request_id: Count
    token_id: TokenId


class RowsMissing(Part, frozen=True):
    """Rows `[first, end)` of a key are wanted of a request, and the prefix store has them not: it must start over."""

    request_id: Count
    key: Text
    first: Count
    end: Count


PrefixReport = dict[bytes, dict[Text, Count]]
"""By digest of a block: how many of its first rows the prefix store has, by key; {}: none."""


class ItemEmbedding(Part, frozen=True):
    """One output of the encoder for item `index` of a request."""

    request_id: Count
    index: Count
    name: Text
    tensor: Tensor


class ItemSaved(Part, frozen=True):
    """The outputs of the encoder for item `index` of a request are being put into the store, under `key`."""

    request_id: Count
    index: Count
    key: Text


class RequestSavedRows(Part, frozen=True):
    """Rows of one request and key that are being put into the store."""

    request_id: Count
    rows: SavedRows


class StepOutput(Message, frozen=True):
    """What a step has made. Rank 0 alone fills `rows` (those of each chunk, and those before it that were wanted),
    `embeddings`, `saved`, `saved_rows` and what comes of the prefix store; `digest` is equal on all ranks.

    `encoder_keys` names what the worker's encoder cache holds behind the step; None unless `debug_check_workers`.
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
    """The worker could not run the step and has kept nothing of it; `prefix_report` tells what it gave up for it."""

    engine_incarnation: Count
    worker_epoch: Count
    step: Count
    error: ErrorInfo
    prefix_report: PrefixReport = msgspec.field(default_factory=dict)


class WorkerProbed(Message, frozen=True):
    """What a probe's item holds, as this worker reads it: hex digest of its bytes; the view of it is gone."""

    engine_incarnation: Count
    worker_epoch: Count
    token: Count
    checksum: Text


FromWorker = WorkerHello | WorkerAttached | StepOutput | StepFailed | WorkerProbed
