"""Computes the block hashes of a prompt as its engine would, to find the engine that has computed most of it."""

from __future__ import annotations

from mmcached.cache.hashing.block_hash import block_hasher
from mmcached.gateway.engines.engine_content import EngineContent
from mmcached.gateway.requests.request_builder import Prompt
from mmcached.wire.config import ServiceConfig


class PromptHasher:
    """The hash function of a service's engines."""

    def __init__(self, config: ServiceConfig) -> None:
        self._hasher = block_hasher(config.prefix_caching_hash_algo, config.prefix_caching_hash_seed)
        self._block_size = config.block_size

    def extend(self, prompt: Prompt) -> None:
        """Compute the block hashes of a prompt; its engine does not compute them again."""
        self._hasher.extend_block_hashes(prompt, self._block_size)
        del prompt.block_hashes[(prompt.num_tokens - 1) // self._block_size :]

    def num_uncached(self, prompt: Prompt, held: EngineContent) -> int:
        """Return the number of tokens and embeddings that an engine with this content has to compute."""
        num_cached = held.num_blocks_of(prompt.block_hashes) * self._block_size
        to_encode = {
            each.mm_hash: each.num_embeds
            for each in prompt.features
            if each.offset + each.length > num_cached and not each.has_output and not held.has_item(each.mm_hash)
        }
        return prompt.num_tokens - num_cached + sum(to_encode.values())
