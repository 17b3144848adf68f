"""Where the two encoder cache managers differ for their caller: how they are made, and what a request looks like.

Everything else has the same names and the same parameters on both sides, and is called directly.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from itertools import count
from typing import Any, Protocol

from mmcached.engine.request import Request
from mmcached.engine.shared_encoder_cache_manager import SharedEncoderCacheManager
from mmcached.wire.messages.parts import Feature, Inline
from ring_peers import vllm_imports


class Side(Protocol):
    """One encoder cache manager with entries by content, and its requests."""

    name: str

    def encoder_manager(self, cache_size: int) -> Any: ...

    def request(self, mm_hashes: Sequence[str], num_embeds: int) -> Any:
        """Return a request with one item of `num_embeds` embeddings for each content key, one behind the other."""


class Ours:
    """This repository's."""

    name = "ours"

    def __init__(self) -> None:
        self._ids = count()

    def encoder_manager(self, cache_size: int) -> SharedEncoderCacheManager:
        return SharedEncoderCacheManager(cache_size)

    def request(self, mm_hashes: Sequence[str], num_embeds: int) -> Request:
        features = [
            Feature(mm_hash, "image", index * num_embeds, num_embeds, num_embeds, 0, Inline(0, 0))
            for index, mm_hash in enumerate(mm_hashes)
        ]
        return Request(next(self._ids), "encode", (), features, max_tokens=0, want_hidden_states=False)


class Vllm:
    """vLLM's, as its scheduler makes them. Raises `Unavailable`."""

    name = "vLLM"

    def __init__(self) -> None:
        _, self._inputs = vllm_imports.load()
        self._manager = importlib.import_module("vllm.v1.core.encoder_cache_manager").EncoderCacheManager
        self._request = importlib.import_module("vllm.v1.request").Request
        self._sampling = importlib.import_module("vllm.sampling_params").SamplingParams(max_tokens=1)
        self._ids = count()

    def encoder_manager(self, cache_size: int) -> Any:
        return self._manager(cache_size)

    def request(self, mm_hashes: Sequence[str], num_embeds: int) -> Any:
        features = [
            self._inputs.MultiModalFeatureSpec(
                None, "image", mm_hash, self._inputs.PlaceholderRange(index * num_embeds, num_embeds), mm_hash
            )
            for index, mm_hash in enumerate(mm_hashes)
        ]
        return self._request(str(next(self._ids)), [0], self._sampling, None, mm_features=features)
