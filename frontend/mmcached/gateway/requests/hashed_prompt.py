"""Makes the block hashes of a prompt as its engine would, to find out which engine has computed most of it."""

from __future__ import annotations

from mmcached.cache.hashing.block_hash import block_hasher
from mmcached.gateway.engines.held_content import HeldContent
from mmcached.gateway.requests.request_builder import Prompt
from mmcached.wire.config import ServiceConfig


class PromptHasher:
    """The hash function of a service's engines."""

    def __init__(self, config: ServiceConfig) -> None:
        self._hasher = block_hasher(config.prefix_caching_hash_algo, config.prefix_caching_hash_seed)
        self._block_size = config.block_size

    def extend(self, prompt: Prompt) -> None:
        """Make the block hashes of a prompt. The engine that gets it does not make them again."""
        self._hasher.extend_block_hashes(prompt, self._block_size)
        del prompt.block_hashes[(prompt.num_tokens - 1) // self._block_size :]

    def num_uncached(self, prompt: Prompt, held: HeldContent) -> int:
        """Return how many tokens and embeddings an engine that holds this has to compute, besides those it can load."""
        num_cached = held.num_blocks_of(prompt.block_hashes) * self._block_size
        to_encode = {
            each.mm_hash: each.num_embeds
            for each in prompt.features
            if each.offset + each.length > num_cached and not each.has_output and not held.has_item(each.mm_hash)
        }
        return prompt.num_tokens - num_cached + sum(to_encode.values())
