"""Builds the message to an engine: tokens with placeholders, and the place of each item in the prompt and in memory.

build_prompt    when its items are known: all placeholders; the engine is chosen by it
build_request   when its engine is known: with the place of each item
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from mmcached.cache.hashing.block_keys import LoraKey
from mmcached.gateway.caches.item_cache import OutgoingItem
from mmcached.gateway.processing.prompt import check_length, expand
from mmcached.gateway.requests.open_requests import OpenRequest
from mmcached.wire.config import ServiceConfig
from mmcached.wire.handle import Handle
from mmcached.wire.messages.engine import AddRequest
from mmcached.wire.messages.frontend import Generate
from mmcached.wire.messages.parts import Feature, Inline, StoredItem
from mmcached.wire.sockets.frames import Frame


@dataclass(slots=True)
class Prompt:
    """A prompt with all placeholders, in the form that the block hasher takes.

    Attributes:
        features: Its items, without their payload.
        block_hashes: Hashes of the full blocks before the last token, which is always computed; empty unless the prompt
            was routed by them.
    """

    token_ids: list[int]
    features: list[Feature]
    tenant: str
    block_hashes: list[bytes] = field(default_factory=list)
    lora: LoraKey | None = None
    prompt_embeds: Mapping[int, bytes] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


def build_prompt(request: OpenRequest, items: Sequence[OutgoingItem], config: ServiceConfig) -> Prompt:
    """Return the prompt of a request with these items.

    Raises:
        InvalidRequest: With all placeholders the prompt is longer than the model accepts, or its numbers of markers and
            items differ.
    """
    message, lengths = request.message, iter([item.num_embeds for item in items])
    by_medium = [[next(lengths) for _ in medium.keys] for medium in request.media]
    token_ids, offsets = expand(request.token_ids, by_medium, request.marks)
    if isinstance(message, Generate):
        check_length(len(token_ids), max_model_len=config.max_model_len, max_tokens=message.max_tokens)
    features = [
        Feature(
            _hash_in_engine(item, medium.name),
            medium.modality,
            offset,
            item.num_embeds,
            item.num_embeds,
            item.nbytes,
            None,
            has_output=item.has_output,
            num_bound=0 if request.language is None else request.language.num_bound(offset),
        )
        for item, (medium, _), offset in zip(items, request.items, offsets, strict=True)
    ]
    return Prompt(token_ids, features, message.tenant)


def build_request(
    request: OpenRequest,
    prompt: Prompt,
    items: Sequence[OutgoingItem],
    *,
    mirror_seq: int,
    store_epoch: int,
    takes_keys: bool,
) -> tuple[AddRequest, list[Frame]]:
    """Return the message to the engine, with its payload frames.

    Args:
        items: The items of the prompt, in the form in which they travel.
        mirror_seq, store_epoch, takes_keys: See `AddRequest`.
    """
    message = request.message
    payload: list[Frame] = []
    places: dict[str, StoredItem | Inline | None] = {}
    for item in items:
        if isinstance(item.payload, Handle):
            places[item.mm_hash] = StoredItem(item.payload.token)
        elif item.payload is not None and item.mm_hash not in places:
            places[item.mm_hash] = Inline(len(payload), len(item.payload))
            payload += item.payload  # once, however often the request names it
    add = AddRequest(
        request_id=request.number,
        kind="generate" if isinstance(message, Generate) else "encode",
        prompt_token_ids=prompt.token_ids,
        features=[
            msgspec.structs.replace(feature, payload=places.get(item.mm_hash))
            for feature, item in zip(prompt.features, items, strict=True)
        ],
        max_tokens=message.max_tokens if isinstance(message, Generate) else 0,
        rows=message.rows if isinstance(message, Generate) else None,
        tenant=message.tenant,
        mirror_seq=mirror_seq,
        store_epoch=store_epoch,
        is_streamed=isinstance(message, Generate) and message.stream_window > 0,
        priority=message.priority if isinstance(message, Generate) else 0,
        takes_keys=takes_keys,
        traceparent="" if request.span is None else request.span.traceparent,
        block_hashes=prompt.block_hashes,
        sampling=message.sampling if isinstance(message, Generate) else None,
    )
    return add, payload


def _hash_in_engine(item: OutgoingItem, image_id: str | None) -> str:
    """Return an item's hash for the engine; for an item with a client's id it includes the number of embeddings.

    A client may give an id to another image once the first one is gone from here. The engine may still have the
    embeddings
    of the first image then; if their number differs, the step fails for all its requests.
    """
    return item.mm_hash if image_id is None else f"{item.mm_hash}:{item.num_embeds}"
