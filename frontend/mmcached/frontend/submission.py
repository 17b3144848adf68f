"""From what a client asked to what an engine is told: tokens, items, handles.

`Preparer.prepare` does all that can fail on bad input. `Preparer.features` then resolves every item against the sender
cache, in the two-pass order that protects a request's own items: touch every key, then get-and-update in prompt order.
Both run on the frontend's one thread, so nothing can come between the cache's answer and the message that is built from
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmcached.cache import MultiModalKwargsItem, ResolvedPromptUpdate
from mmcached.frontend.hasher import MultiModalHasher
from mmcached.frontend.processor import ImageProcessor
from mmcached.frontend.prompt import check_length, expand, tokenise
from mmcached.frontend.sender_cache import ShmItem, ShmObjectStoreSenderCache
from mmcached.shm import codec
from mmcached.wire.channels import Frame
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.handle import Handle, LeaseId
from mmcached.wire.messages.frontend import Encode, Generate
from mmcached.wire.messages.parts import Feature, Inline
from mmcached.wire.vocabulary import IMAGE_TOKEN_ID

ItemAndUpdates = tuple[MultiModalKwargsItem | ShmItem, Sequence[ResolvedPromptUpdate]]


@dataclass(frozen=True, slots=True)
class ResolvedItem:
    """One item as it can travel: in the ring, or as the item itself to go inline."""

    mm_hash: str
    item: MultiModalKwargsItem | ShmItem
    updates: Sequence[ResolvedPromptUpdate]


class Preparer:
    """Turns requests into tokens and items. Holds the processor and, unless switched off, the sender cache.

    Args:
        cache: None = no processor cache: every item is processed anew and travels inline.
    """

    def __init__(self, config: ServiceConfig, cache: ShmObjectStoreSenderCache | None) -> None:
        self._config = config
        self._cache = cache
        self._processor = ImageProcessor(config.model, config.max_image_pixels, config.max_image_bytes)
        self._hasher = MultiModalHasher()
        self.items_processed = 0

    def prepare(self, message: Generate | Encode, images: Sequence[bytes]) -> list[int]:
        """Return the prompt's tokens with one image token per image.

        Raises:
            InvalidRequest: too many images, none to encode, or a prompt that does not fit.
        """
        limit = self._config.max_images_per_request
        if len(images) > limit:
            raise InvalidRequest("images", len(images), f"at most {limit} images per request")
        if isinstance(message, Encode):
            if not images:
                raise InvalidRequest("images", 0, "at least one image is needed to encode")
            return [IMAGE_TOKEN_ID] * len(images)
        return tokenise(
            message.prompt,
            len(images),
            max_model_len=self._config.max_model_len,
            max_tokens=message.max_tokens,
        )

    def resolve(self, images: Sequence[bytes], tenant: str) -> list[ResolvedItem]:
        """Return each image's processed item, from the cache where it is there.

        Items that the cache holds stay pinned until `release`.

        Raises:
            InvalidRequest: (subclasses for images) names the index. Items of other images may have been cached by then.
        """
        keys = [self._key(data, tenant) for data in images]
        if self._cache is None:
            return [
                ResolvedItem(key, *self._process(data, index))
                for index, (key, data) in enumerate(zip(keys, images, strict=True))
            ]
        for key in keys:
            self._cache.touch_sender_cache_item(key)
        fresh: dict[str, tuple[MultiModalKwargsItem, list[ResolvedPromptUpdate]]] = {}
        resolved = []
        for index, (key, data) in enumerate(zip(keys, images, strict=True)):
            if not self._cache.is_cached_item(key) and key not in fresh:
                fresh[key] = self._process(data, index)
            item, updates = self._cache.get_and_update_item(fresh.get(key), key)
            if isinstance(item, ShmItem):
                # Later items of this request must not evict what it is about to send.
                self._cache.touch_sender_cache_item(key)
            resolved.append(ResolvedItem(key, item, updates))
        return resolved

    def release(self) -> None:
        """Unpin what `resolve` pinned: the request has been sent, or given up."""
        if self._cache is not None:
            self._cache.release_sender_touches()

    def expand(
        self, message: Generate | Encode, token_ids: list[int], items: Sequence[ResolvedItem]
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Replace each image token by the item's placeholders.

        Returns:
            all token ids, and `(offset, length)` of each item.
        Raises:
            InvalidRequest: with the placeholders the prompt is longer than the model takes.
        """
        expanded, ranges = expand(token_ids, [item.updates for item in items])
        if isinstance(message, Generate):
            limit = self._config.max_model_len
            check_length(len(expanded), max_model_len=limit, max_tokens=message.max_tokens)
        return expanded, [(place.offset, place.length) for place in ranges]

    def _key(self, data: bytes, tenant: str) -> str:
        return self._hasher.item_key(data, modality="image", fingerprint=self._processor.fingerprint, tenant=tenant)

    def _process(self, data: bytes, index: int) -> tuple[MultiModalKwargsItem, list[ResolvedPromptUpdate]]:
        processed = self._processor.process(data, f"images[{index}]")
        self.items_processed += 1
        return processed


class FeatureBuilder:
    """Collects the features of one message and the frames of the items that travel inline."""

    def __init__(self) -> None:
        self.features: list[Feature] = []
        self.payload: list[Frame] = []

    def add(self, item: ResolvedItem, place: tuple[int, int], lease: LeaseId | None) -> None:
        """Append one item. `lease` is its grant if it lies in the ring."""
        offset, length = place
        self.features.append(
            Feature(
                mm_hash=item.mm_hash,
                modality="image",
                offset=offset,
                length=length,
                num_embeds=length,
                payload=self._payload_of(item),
                lease=lease,
            )
        )

    def _payload_of(self, item: ResolvedItem) -> Handle | Inline:
        if isinstance(item.item, ShmItem):
            return item.item.handle
        frames = codec.encode(item.item.to_record()).frames()
        first = len(self.payload)
        self.payload.extend(frames)
        return Inline(first, len(frames))
