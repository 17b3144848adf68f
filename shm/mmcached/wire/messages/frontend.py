"""What the frontend receives: from clients on one socket, from engines on another."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from mmcached.wire.errors import ErrorInfo
from mmcached.wire.handle import Count
from mmcached.wire.messages.parts import Message, Tensor, Text, TokenId
from mmcached.wire.stats import EngineStats

ClientId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
Timeout = Annotated[float, msgspec.Meta(gt=0, le=86_400)]

# ---- from clients


class ClientHello(Message, frozen=True):
    """Ask who is there. A client holds the lock of `clients/<client_id>.lock` for its life: that lock free = it is
    dead.

    Every request repeats the `client_id`, so a restarted frontend needs no second hello.
    """

    client_id: ClientId


class Generate(Message, frozen=True):
    """Continue a prompt; the encoded image files are the further frames, one per `<image>` marker.

    Attributes:
        prompt: text (markers spelled `<image>`), or token ids (markers are the image token).
        timeout_s: after it the frontend abandons the request.
    """

    client_id: ClientId
    request_id: Count
    prompt: str | list[TokenId]
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    want_hidden_states: bool
    timeout_s: Timeout
    tenant: Text = ""


class Encode(Message, frozen=True):
    """Embed images; the encoded image files are the further frames."""

    client_id: ClientId
    request_id: Count
    timeout_s: Timeout
    tenant: Text = ""


class Cancel(Message, frozen=True):
    """End a request of the same client; unknown or finished ids change nothing. No answer."""

    client_id: ClientId
    request_id: Count


class GetStats(Message, frozen=True):
    request_id: Count


class Probe(Message, frozen=True):
    """Ask whether the data path works: an item goes through ring, engines and every worker, and its leases return."""

    request_id: Count
    timeout_s: Timeout


class Flush(Message, frozen=True):
    """Forget everything cached, in all roles; requests that run start over."""

    request_id: Count


class ClientBye(Message, frozen=True):
    """The client closes: its open requests are cancelled. No answer."""

    client_id: ClientId


FromClient = ClientHello | Generate | Encode | Cancel | GetStats | Probe | Flush | ClientBye

# ---- from engines


class EngineHello(Message, frozen=True):
    """First message of an engine, again after the frontend restarted. `incarnation` is new for each process.

    Another incarnation with the same `engine_index`: the former engine is dead.
    """

    engine_index: Count
    incarnation: Count
    config_digest: Text


class RowHello(Message, frozen=True):
    """The engine has taken row `row` of ring `epoch` and written `nonce` into it."""

    epoch: Count
    row: Count
    nonce: Count


class LeaseGap(Message, frozen=True):
    """A lease came whose predecessor did not: descriptors were lost, ask with a `Barrier`."""

    nonce: Count


class Reconcile(Message, frozen=True):
    """Answer to `Barrier`: slot -> leases that incarnation `nonce` has ever received."""

    nonce: Count
    barrier_id: Count
    received: dict[Count, Count]


class EngineReady(Message, frozen=True):
    """All workers are attached: requests may come."""

    num_workers: Count


class RequestGenerated(Message, frozen=True):
    request_id: Count
    token_ids: list[TokenId]
    finish_reason: Literal["stop", "length"]
    num_cached_tokens: Count
    hidden_states: Tensor | None = None


class RequestEncoded(Message, frozen=True):
    request_id: Count
    embeddings: list[Tensor]


class RequestFailed(Message, frozen=True):
    request_id: Count
    error: ErrorInfo


class RequestMissed(Message, frozen=True):
    """The engine cannot use what was sent for these items; the request waits nowhere: send it again with the data."""

    request_id: Count
    mm_hashes: list[Text]


class EngineProbed(Message, frozen=True):
    """Every worker's checksum of the probe's item, by rank."""

    token: Count
    checksums: list[Text]


class EngineFlushed(Message, frozen=True):
    token: Count


class EngineStatsReply(Message, frozen=True):
    token: Count
    stats: EngineStats


FromEngine = (
    EngineHello
    | RowHello
    | LeaseGap
    | Reconcile
    | EngineReady
    | RequestGenerated
    | RequestEncoded
    | RequestFailed
    | RequestMissed
    | EngineStatsReply
    | EngineProbed
    | EngineFlushed
)
