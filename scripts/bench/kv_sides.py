"""Bridges where the two KV cache managers differ: how they are made, and where a request's digests lie.

Everything else has the same names and the same first parameters on both sides, and is called directly.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import torch

from mmcached.engine.kv.config import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from mmcached.engine.kv.hashing.block_hash import extend_block_hashes
from mmcached.engine.kv.manager import KVCacheManager
from mmcached.engine.steps.request import Request
from scripts.bench import vllm

BLOCK_SIZE = 16
MAX_MODEL_LEN = 1 << 20
WINDOW = 1_024


@dataclass(frozen=True, slots=True)
class Kind:
    """What a manager is made for.

    Attributes:
        groups: of layers: tokens per block, and the window in tokens, None with full attention.
        has_events: whether it tells what it stores and removes.
    """

    groups: tuple[tuple[int, int | None], ...] = ((BLOCK_SIZE, None),)
    has_events: bool = False

    @property
    def block_sizes(self) -> list[int]:
        return [block_size for block_size, _ in self.groups]


PLAIN = Kind()
FOUR_GROUPS = Kind(((BLOCK_SIZE, None), *[(BLOCK_SIZE, WINDOW)] * 3))


class Side(Protocol):
    """One manager and its requests; prefixes are cached."""

    name: str

    def manager(self, num_blocks: int, kind: Kind) -> Any: ...

    def request(self, token_ids: Sequence[int], block_hashes: Sequence[bytes]) -> Any:
        """Return a request that waits, with the digests of its full blocks."""

    def reserve(self, manager: Any, request: Any) -> None:
        """Hand out the slots of all its tokens, and publish none."""

    def hasher(self, token_ids: Sequence[int]) -> Callable[[], object]:
        """Return a call that hashes all full blocks of a prompt anew, by SHA-256."""


class Ours:
    """This repository's."""

    name = "ours"

    def __init__(self) -> None:
        self._ids = count()

    def manager(self, num_blocks: int, kind: Kind) -> KVCacheManager:
        specs = [
            FullAttentionSpec(block_size) if window is None else SlidingWindowSpec(block_size, window)
            for block_size, window in kind.groups
        ]
        config = KVCacheConfig(num_blocks, [KVCacheGroupSpec([f"layer {i}"], spec) for i, spec in enumerate(specs)])
        return KVCacheManager(config, MAX_MODEL_LEN, enable_kv_cache_events=kind.has_events)

    def request(self, token_ids: Sequence[int], block_hashes: Sequence[bytes]) -> Request:
        made = Request(next(self._ids), "generate", token_ids, [], max_tokens=1)
        made.block_hashes = list(block_hashes)
        return made

    def reserve(self, manager: KVCacheManager, request: Request) -> None:
        manager.begin_step(0)
        manager.allocate_slots(request, request.num_tokens)
        manager.withdraw(0)

    def hasher(self, token_ids: Sequence[int]) -> Callable[[], object]:
        request = self.request(token_ids, ())

        def run() -> None:
            request.block_hashes.clear()
            extend_block_hashes(request, BLOCK_SIZE)

        return run


class Vllm:
    """vLLM's, as its scheduler makes them. Raises `Unavailable`."""

    name = "vLLM"

    def __init__(self) -> None:
        vllm.load()
        self._managers = importlib.import_module("vllm.v1.core.kv_cache_manager")
        self._utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
        self._config = importlib.import_module("vllm.v1.kv_cache_interface")
        self._request = importlib.import_module("vllm.v1.request").Request
        self._sampling = importlib.import_module("vllm.sampling_params").SamplingParams(max_tokens=1)
        self._sha256 = importlib.import_module("vllm.utils.hashing").sha256
        self._utils.init_none_hash(self._sha256)
        self._ids = count()

    def manager(self, num_blocks: int, kind: Kind) -> Any:
        layer = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float16}
        specs = [
            self._config.FullAttentionSpec(block_size=block_size, **layer)
            if window is None
            else self._config.SlidingWindowSpec(block_size=block_size, sliding_window=window, **layer)
            for block_size, window in kind.groups
        ]
        config = self._config.KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[self._config.KVCacheGroupSpec([f"layer {i}"], spec) for i, spec in enumerate(specs)],
        )
        return self._managers.KVCacheManager(
            config,
            MAX_MODEL_LEN,
            scheduler_block_size=math.lcm(*kind.block_sizes),
            hash_block_size=math.gcd(*kind.block_sizes),
            enable_kv_cache_events=kind.has_events,
        )

    def request(self, token_ids: Sequence[int], block_hashes: Sequence[bytes]) -> Any:
        made = self._request(str(next(self._ids)), list(token_ids), self._sampling, None)
        made.block_hashes = list(block_hashes)
        return made

    def reserve(self, manager: Any, request: Any) -> None:
        manager.allocate_slots(request, request.num_tokens, delay_cache_blocks=True)

    def hasher(self, token_ids: Sequence[int]) -> Callable[[], object]:
        hash_blocks = self._utils.get_request_block_hasher(BLOCK_SIZE, self._sha256)
        request = self.request(token_ids, ())
        return lambda: hash_blocks(request)
