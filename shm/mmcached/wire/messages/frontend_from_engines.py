"""Messages from engines to the frontend."""

from __future__ import annotations

from typing import Literal

import msgspec

from mmcached.wire.errors import ErrorInfo
from mmcached.wire.handle import Count
from mmcached.wire.messages.parts import (
    EncoderForm,
    EncoderOutput,
    Message,
    RequestRows,
    Rows,
    SavedRows,
    StreamedTokens,
    Text,
    TokenId,
    TokenLogprob,
)


class EngineHello(Message, frozen=True):
    """First message of an engine over each connection. `incarnation` is new for each process."""

    engine_index: Count
    incarnation: Count
    config_digest: Text


class EngineReady(Message, frozen=True):
    """All workers are attached: requests may come. `encoder_fingerprint` and `encoder`: see `WorkerAttached`."""

    num_workers: Count
    encoder_fingerprint: Text = ""
    encoder: EncoderForm | None = None


class TokensCommitted(Message, frozen=True):
    """New tokens of a step, for streamed generations that go on; finished ones are answered by `RequestGenerated`.

    Attributes:
        rows: New rows, for generations whose rows are wanted as they are computed. Rows of a step come with its tokens
            or before.
    """

    streams: list[StreamedTokens]
    rows: list[RequestRows] = msgspec.field(default_factory=list)


class RequestGenerated(Message, frozen=True):
    """A finished generation, with all its tokens and the rows that were not sent before, those of a key in order.

    Attributes:
        saved_rows: As in `Generated`; of a key, they lie before, between and behind `rows`.
        logprobs: As in `Generated`.
    """

    request_id: Count
    token_ids: list[TokenId]
    finish_reason: Literal["stop", "length"]
    num_cached_tokens: Count
    rows: list[Rows] = msgspec.field(default_factory=list)
    saved_rows: list[SavedRows] = msgspec.field(default_factory=list)
    logprobs: list[list[TokenLogprob]] = msgspec.field(default_factory=list)


class RequestEncoded(Message, frozen=True):
    """The encoder outputs of each item, by name, in the encoder's order.

    If the request takes keys, outputs may be replaced by the key under which the store has them, or soon will.
    """

    request_id: Count
    outputs: list[EncoderOutput]


class RequestFailed(Message, frozen=True):
    request_id: Count
    error: ErrorInfo


class RequestMissed(Message, frozen=True):
    """The engine cannot use the payload of these items, or an unnamed encoder output is gone from the store.

    The engine has dropped the request: send it again with all data.
    """

    request_id: Count
    mm_hashes: list[Text]


class EngineProbed(Message, frozen=True):
    """Every worker's checksum of the probe's item, by rank; empty if a worker is missing, or was replaced meanwhile."""

    token: Count
    checksums: list[Text]


class EngineFlushed(Message, frozen=True):
    token: Count


class CacheChanged(Message, frozen=True):
    """Changes of an engine's cache content since the last such message; sent before the answers that follow.

    Attributes:
        is_all: The message has the whole content, and replaces all earlier ones.
        blocks, dropped_blocks: Digests of KV blocks.
        items, dropped_items: `mm_hash` of items with a cached encoder output.
    """

    is_all: bool
    blocks: list[bytes] = msgspec.field(default_factory=list)
    dropped_blocks: list[bytes] = msgspec.field(default_factory=list)
    items: list[Text] = msgspec.field(default_factory=list)
    dropped_items: list[Text] = msgspec.field(default_factory=list)


FromEngine = (
    EngineHello
    | EngineReady
    | TokensCommitted
    | RequestGenerated
    | RequestEncoded
    | RequestFailed
    | RequestMissed
    | EngineProbed
    | EngineFlushed
    | CacheChanged
)
