"""Builds the message to an engine: tokens with placeholders, and for each item its place among them and in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mmcached.frontend.caches.item_cache import OutgoingItem
from mmcached.frontend.processing.media import Medium
from mmcached.frontend.processing.prompt import check_length, expand, tokenise
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.messages.engine import AddRequest
from mmcached.wire.messages.frontend import Encode, Generate
from mmcached.wire.messages.parts import Feature, Inline, StoredItem
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.vocabulary import TOKEN_IDS


def prompt_tokens(message: Generate | Encode, media: Sequence[Medium], config: ServiceConfig) -> list[int]:
    """Return the prompt's tokens with one token per medium.

    Raises:
        InvalidRequest: too many images or clips, none to encode, or a prompt that does not fit.
    """
    numbers = Counter(medium.modality for medium in media)
    limit = config.max_images_per_request
    if numbers["image"] > limit:
        raise InvalidRequest("images", numbers["image"], f"at most {limit} images per request")
    limit = config.limits.max_clips_per_request
    if len(message.clips) > limit:
        raise InvalidRequest("clips", len(message.clips), f"at most {limit} (limits.max_clips_per_request)")
    if isinstance(message, Generate):
        if media and config.encoder.kind != "reference":
            field, value = media[0].field.partition("[")[0], len(media)
            raise InvalidRequest(field, value, "none: the service's checkpoint only encodes; ask it to encode")
        return tokenise(message.prompt, numbers, max_model_len=config.max_model_len, max_tokens=message.max_tokens)
    if not media:
        raise InvalidRequest("images", 0, "at least one image, video or sound is needed to encode")
    return [TOKEN_IDS[medium.modality] for medium in media]


def build_request(
    number: int,
    message: Generate | Encode,
    token_ids: list[int],
    items: Sequence[OutgoingItem],
    media: Sequence[Medium],
    *,
    mirror_seq: int,
    store_epoch: int = 0,
    takes_keys: bool = False,
    traceparent: str = "",
    config: ServiceConfig,
) -> tuple[AddRequest, list[Frame]]:
    """Return the message to the engine, with its payload frames.

    Args:
        token_ids: from `prompt_tokens`.
        media: in prompt order; the items are theirs.
        mirror_seq, store_epoch, takes_keys, traceparent: see `AddRequest`.
    Raises:
        InvalidRequest: with the placeholders the prompt is longer than the model takes.
    """
    expanded, offsets = expand(token_ids, lengths_of(items, media))
    if isinstance(message, Generate):
        check_length(len(expanded), max_model_len=config.max_model_len, max_tokens=message.max_tokens)
    medium_of = [medium for medium in media for _ in medium.keys]
    payload: list[Frame] = []
    features = []
    inline: dict[str, Inline] = {}
    for item, medium, offset in zip(items, medium_of, offsets, strict=True):
        where: StoredItem | Inline | None = None
        if isinstance(item.payload, list):  # its frames travel once, however often the request names it
            where = inline.get(item.mm_hash) or Inline(len(payload), len(item.payload))
            if item.mm_hash not in inline:
                inline[item.mm_hash] = where
                payload += item.payload
        elif item.payload is not None:
            where = StoredItem(item.payload.token)
        mm_hash = hash_in_engine(item, medium.name)
        length = item.num_embeds
        features.append(
            Feature(mm_hash, medium.modality, offset, length, length, item.nbytes, where, has_output=item.has_output)
        )
    add = AddRequest(
        request_id=number,
        kind="generate" if isinstance(message, Generate) else "encode",
        prompt_token_ids=expanded,
        features=features,
        max_tokens=message.max_tokens if isinstance(message, Generate) else 0,
        rows=message.rows if isinstance(message, Generate) else None,
        tenant=message.tenant,
        mirror_seq=mirror_seq,
        store_epoch=store_epoch,
        is_streamed=isinstance(message, Generate) and message.stream_window > 0,
        priority=message.priority if isinstance(message, Generate) else 0,
        takes_keys=takes_keys,
        traceparent=traceparent,
    )
    return add, payload


def lengths_of(items: Sequence[OutgoingItem], media: Sequence[Medium]) -> list[list[int]]:
    """Return the placeholders of each medium's items."""
    lengths = iter([item.num_embeds for item in items])
    return [[next(lengths) for _ in medium.keys] for medium in media]


def hash_in_engine(item: OutgoingItem, image_id: str | None) -> str:
    """Return what an engine knows an item by; of one that its client has named, the number of embeddings is a part.

    A client may use a name again for another image, once the first has gone from here. The engine may still have the
    first one's embeddings then, and a step in which they do not fill the placeholders fails for all that take part.
    """
    return item.mm_hash if image_id is None else f"{item.mm_hash}:{item.num_embeds}"
