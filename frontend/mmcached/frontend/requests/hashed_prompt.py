"""Makes the block hashes of a prompt as its engine will, to find out which engine has computed most of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mmcached.cache.hashing.block_hash import block_hasher
from mmcached.cache.hashing.block_keys import LoraKey
from mmcached.frontend.caches.item_cache import OutgoingItem
from mmcached.frontend.engines.held_content import HeldContent
from mmcached.frontend.processing.prompt import expand
from mmcached.frontend.requests.open_requests import OpenRequest
from mmcached.frontend.requests.request_builder import hash_in_engine, lengths_of
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages.frontend import Generate
from mmcached.wire.messages.parts import Feature


@dataclass(slots=True)
class HashedPrompt:
    """A prompt with all placeholders, as the hasher wants it.

    Attributes:
        block_hashes: of the full blocks before the last token, which is always computed; none if no KV is wanted.
    """

    token_ids: list[int]
    features: list[Feature]
    tenant: str
    block_size: int
    block_hashes: list[bytes] = field(default_factory=list)
    lora: LoraKey | None = None
    prompt_embeds: Mapping[int, bytes] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    def num_uncached(self, held: HeldContent) -> int:
        """Return how many tokens and embeddings an engine that holds this has to compute; what it can load is none."""
        num_cached = held.num_blocks_of(self.block_hashes) * self.block_size
        to_encode = {
            each.mm_hash: each.num_embeds
            for each in self.features
            if each.offset + each.length > num_cached and not each.has_output and not held.has_item(each.mm_hash)
        }
        return self.num_tokens - num_cached + sum(to_encode.values())


class PromptHasher:
    """The hash function of a service's engines."""

    def __init__(self, config: ServiceConfig) -> None:
        self._hasher = block_hasher(config.prefix_caching_hash_algo, config.prefix_caching_hash_seed)
        self._block_size = config.block_size

    def hashed(self, request: OpenRequest, items: Sequence[OutgoingItem]) -> HashedPrompt:
        """Return the prompt of a request with these items.

        Raises:
            InvalidRequest: it has another number of markers than of items.
        """
        token_ids, offsets = expand(request.token_ids, lengths_of(items, request.media))
        features = [
            Feature(
                mm_hash=hash_in_engine(item, medium.name),
                modality=medium.modality,
                offset=offset,
                length=item.num_embeds,
                num_embeds=item.num_embeds,
                nbytes=item.nbytes,
                payload=None,
                has_output=item.has_output,
            )
            for item, (medium, _), offset in zip(items, request.items, offsets, strict=True)
        ]
        prompt = HashedPrompt(token_ids, features, request.message.tenant, self._block_size)
        if isinstance(request.message, Generate):
            self._hasher.extend_block_hashes(prompt, self._block_size)
            del prompt.block_hashes[(prompt.num_tokens - 1) // self._block_size :]
        return prompt
