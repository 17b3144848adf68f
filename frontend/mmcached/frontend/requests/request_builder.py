"""Builds the message to an engine: tokens with placeholders, and for each item its place among them and in memory."""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.frontend.caches.item_cache import OutgoingItem
from mmcached.frontend.processing.prompt import check_length, expand, tokenise
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.handle import Handle, LeaseId
from mmcached.wire.messages.engine import AddRequest
from mmcached.wire.messages.frontend import Encode, Generate
from mmcached.wire.messages.parts import Feature, Inline
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.vocabulary import IMAGE_TOKEN_ID


def prompt_tokens(message: Generate | Encode, num_images: int, config: ServiceConfig) -> list[int]:
    """Return the prompt's tokens with one image token per image.

    Raises:
        InvalidRequest: too many images, none to encode, or a prompt that does not fit.
    """
    limit = config.max_images_per_request
    if num_images > limit:
        raise InvalidRequest("images", num_images, f"at most {limit} images per request")
    if isinstance(message, Generate):
        if num_images and config.encoder.kind != "reference":
            raise InvalidRequest("images", num_images, "none: the service's checkpoint only encodes; ask it to encode")
        return tokenise(message.prompt, num_images, max_model_len=config.max_model_len, max_tokens=message.max_tokens)
    if not num_images:
        raise InvalidRequest("images", 0, "at least one image is needed to encode")
    return [IMAGE_TOKEN_ID] * num_images


def build_request(
    number: int,
    message: Generate | Encode,
    token_ids: list[int],
    items: Sequence[OutgoingItem],
    *,
    leases: Sequence[LeaseId | None],
    mirror_seq: int,
    store_epoch: int = 0,
    takes_keys: bool = False,
    config: ServiceConfig,
) -> tuple[AddRequest, list[Frame]]:
    """Return the message to the engine, with its payload frames.

    Args:
        token_ids: from `prompt_tokens`.
        leases: one per item; None for one that is not in the ring.
        mirror_seq, store_epoch, takes_keys: see `AddRequest`.
    Raises:
        InvalidRequest: with the placeholders the prompt is longer than the model takes.
    """
    expanded, offsets = expand(token_ids, [item.num_embeds for item in items])
    if isinstance(message, Generate):
        check_length(len(expanded), max_model_len=config.max_model_len, max_tokens=message.max_tokens)
    image_ids = message.image_ids or [None] * len(items)
    payload: list[Frame] = []
    features = []
    inline: dict[str, Inline] = {}
    for item, image_id, offset, lease in zip(items, image_ids, offsets, leases, strict=True):
        where: Handle | Inline | None
        if isinstance(item.payload, list):  # its frames travel once, however often the request names it
            where = inline.get(item.mm_hash) or Inline(len(payload), len(item.payload))
            if item.mm_hash not in inline:
                inline[item.mm_hash] = where
                payload += item.payload
        else:
            where = item.payload
        mm_hash = hash_in_engine(item, image_id)
        length = item.num_embeds
        features.append(
            Feature(mm_hash, "image", offset, length, length, item.nbytes, where, lease, has_output=item.has_output)
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
    )
    return add, payload


def hash_in_engine(item: OutgoingItem, image_id: str | None) -> str:
    """Return what an engine knows an item by; of one that its client has named, the number of embeddings is a part.

    A client may use a name again for another image, once the first has gone from here. The engine may still have the
    first one's embeddings then, and a step in which they do not fill the placeholders fails for all that take part.
    """
    return item.mm_hash if image_id is None else f"{item.mm_hash}:{item.num_embeds}"
