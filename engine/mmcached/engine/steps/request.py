"""Request: tokens and multimodal items that are computed step by step.

    | prompt_token_ids                    | output_token_ids |
    |---- computed ----|---------- to be computed ----------|
    0                  num_computed_tokens                  num_tokens

Invariant: `0 <= num_computed_tokens <= num_tokens`, and less than `num_tokens` while the request is not finished.
Output tokens survive preemption; their KV is recomputed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, Literal, NamedTuple, TypeAlias

from mmcached.cache.checkpoints.answer_text import AnswerText
from mmcached.cache.hashing.block_keys import LoraKey
from mmcached.wire.messages.parts import Feature, RowsWanted, Sampling
from mmcached.wire.vocabulary import END_TOKEN_ID

Kind = Literal["generate", "encode"]
FinishReason = Literal["stop", "length"]
RequestId: TypeAlias = Any
"""Identity of a request while it lives: an integer in the service, any hashable value in another engine."""

_ENDS = frozenset({END_TOKEN_ID})


class RequestStatus(enum.Enum):
    """WAITING -> RUNNING -> FINISHED; back to WAITING by preemption, withdrawal or reset; ABORTED from any state."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"


class Request:
    """A generation, or (kind "encode") a list of items of which only the embeddings are returned.

    Attributes:
        request_id: its only identity: a second request with an id in use continues the first.
        token_ids: prompt and output; append only, or call `KVCacheManager.free_block_hashes` after a change in place.
        prompt_embeds: digest of the embedding that replaces a token id, by position.
        num_cached_tokens: prompt tokens found in the prefix cache at the first admission.
        num_emitted: items of an "encode" request whose embeddings have been returned, in order.
        num_faults: steps with this request that failed, or in which a worker died.
        alone_until: `progress` up to which it is computed alone, as a suspect; 0 for other requests.
        was_admitted: whether it was scheduled before, so that a prefix hit now is not a new one.
        block_hashes: hashes of the full blocks so far. An engine with its own hashes puts them here: 32 bytes for each
            `hash_block_size` tokens, each covering all tokens before it.
        skip_reading_prefix_cache: whether all tokens are computed; they are published nevertheless.
        priority: under the "priority" policy, lower is served first.
        outputs: lease tokens of encoder outputs in the store, by item.
        store_epoch: epoch of the store in which new encoder outputs are saved; 0 if they are not saved.
        takes_keys: whether large outputs may be returned as keys in the store.
        rows_name: prefix of the names under which large row parts are stored; "" if rows are not stored.
        num_rows_delivered: position before which no row is wanted any more.
        place: sort key of the order of service, set by the scheduler.
        features_end: position after the last item's placeholders; 0 without items.
        sampling: how the next tokens are chosen; None: the most likely ones.
        stop_token_ids: tokens that end the generation.
        text: of the output, if it has stop strings, the first of which ends the generation.
        num_shareable_tokens: leading tokens whose results other requests may use; None: all.
    """

    def __init__(
        self,
        request_id: RequestId,
        kind: Kind,
        prompt_token_ids: Sequence[int],
        features: Sequence[Feature],
        *,
        max_tokens: int,
        rows: RowsWanted | None = None,
        tenant: str = "",
        skip_reading_prefix_cache: bool = False,
        lora: LoraKey | None = None,
        prompt_embeds: Mapping[int, bytes] | None = None,
        priority: int = 0,
        outputs: Mapping[int, str] | None = None,
        store_epoch: int = 0,
        takes_keys: bool = False,
        rows_name: str = "",
        block_hashes: Sequence[bytes] = (),
        sampling: Sampling | None = None,
        stop_token_ids: Set[int] = _ENDS,
        text: AnswerText | None = None,
        num_shareable_tokens: int | None = None,
    ) -> None:
        self.request_id = request_id
        self.kind = kind
        self.features = list(features)
        self.max_tokens = max_tokens
        self.rows = rows
        self.num_rows_delivered = rows.first_wanted if rows is not None else 0
        self.tenant = tenant
        self.lora = lora
        self.prompt_embeds = dict(prompt_embeds or {})
        self.skip_reading_prefix_cache = skip_reading_prefix_cache
        self.priority = priority
        self.outputs = dict(outputs or {})
        self.store_epoch = store_epoch
        self.takes_keys = takes_keys
        self.rows_name = rows_name
        self.place = (0, 0)
        self.features_end = max((feature.offset + feature.length for feature in self.features), default=0)

        self.token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.num_emitted = 0
        self.num_preemptions = 0
        self.num_faults = 0
        self.alone_until = 0
        self.was_admitted = False
        self.block_hashes = list(block_hashes)
        self.sampling = sampling
        self.stop_token_ids = stop_token_ids
        self.text = text
        self.num_shareable_tokens = num_shareable_tokens
        self.status = RequestStatus.WAITING
        self.finish_reason: FinishReason | None = None

    def __repr__(self) -> str:
        progress = f"{self.num_computed_tokens}/{self.num_tokens} tokens, {len(self.features)} item(s)"
        return f"Request({self.request_id}, {self.kind}, {self.status.value}, {progress})"

    @property
    def row_keys(self) -> Sequence[str]:
        return self.rows.keys if self.rows is not None else ()

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def is_finished(self) -> bool:
        return self.status in (RequestStatus.FINISHED, RequestStatus.ABORTED)

    @property
    def progress(self) -> int:
        """Number of computed tokens; for an "encode" request, of emitted items."""
        return self.num_emitted if self.kind == "encode" else self.num_computed_tokens

    def append_output_token(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        if self.text is not None:
            self.text.add([token_id])

    def reason_to_finish(self) -> FinishReason | None:
        """Return the finish reason if a generation is complete, else None. Changes nothing."""
        token_ids = self.token_ids
        num_output_tokens = len(token_ids) - self.num_prompt_tokens
        if token_ids[-1] in self.stop_token_ids and num_output_tokens > 0:
            return "stop"
        if self.text is not None and self.text.is_stopped:
            return "stop"
        return "length" if num_output_tokens >= self.max_tokens else None

    def features_in(self, start: int, end: int) -> Iterator[tuple[int, Feature]]:
        """Yield index and item for each item that covers a position of `[start, end)`, in prompt order."""
        for index, feature in enumerate(self.features):
            if feature.offset >= end:
                return
            if feature.offset + feature.length > start:
                yield index, feature


class ScheduledItem(NamedTuple):
    request: Request
    input_id: int
    key: str
