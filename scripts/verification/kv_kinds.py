"""Kinds of layers for `kv_beside_vllm`: configurations drawn at random, and vLLM's classes for them."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mmcached.engine.kv.config import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from scripts.bench.peers import load_vllm
from scripts.bench.sides import vllm_spec


@dataclass(frozen=True)
class Group:
    """A group of layers: our spec, whether it is replicated, and the name of vLLM's spec if that is another."""

    spec: KVCacheSpec
    is_replicated: bool = False
    peer: str = ""


@dataclass(frozen=True)
class Setting:
    groups: tuple[Group, ...]
    num_blocks: int
    enable_caching: bool = True
    num_ranks: int = 1
    max_model_len: int = 1000
    has_external: bool = False


def full(block_size: int, **options: Any) -> Group:
    return Group(FullAttentionSpec(block_size), **options)


def chunked(block_size: int, rng: random.Random) -> Group:
    return Group(ChunkedLocalAttentionSpec(block_size, block_size * rng.randint(1, 5)))


def window(block_size: int, rng: random.Random, **options: Any) -> Group:
    return Group(SlidingWindowSpec(block_size, rng.randint(2, 13)), **options)


def mamba(block_size: int, rng: random.Random) -> Group:
    return Group(MambaSpec(block_size, "align", rng.choice((0, 0, 1, 2))))


def _hybrid(rng: random.Random) -> tuple[Group, ...]:
    """Return groups of all kinds whose blocks are of one size, as vLLM makes them for chunks and states."""
    size = rng.choice((1, 2, 4))
    makers = (lambda: full(size), lambda: window(size, rng), lambda: chunked(size, rng), lambda: mamba(size, rng))
    return tuple(rng.choice(makers)() for _ in range(rng.randint(2, 4)))


KINDS: dict[str, Callable[[random.Random], tuple[Group, ...]]] = {
    "full": lambda rng: (full(rng.choice((1, 2, 4))),),
    "mla": lambda rng: (full(rng.choice((1, 2, 4)), peer="MLAAttentionSpec"),),
    "window": lambda rng: (window(rng.choice((1, 2, 4)), rng),),
    "chunked": lambda rng: (chunked(rng.choice((1, 2, 4)), rng),),
    "full_chunked": lambda rng: (full(2), chunked(2, rng)),
    "mamba": lambda rng: (mamba(rng.choice((1, 2, 4)), rng),),
    "full_mamba": lambda rng: (full(4), mamba(4, rng), mamba(4, rng)),
    "fine_full_mamba": lambda rng: (full(rng.choice((1, 2))), mamba(4, rng)),
    "fine_window_full_mamba": lambda rng: (window(2, rng), full(4), mamba(4, rng)),
    "window_beside_larger": lambda rng: (full(rng.choice((4, 8))), window(rng.choice((1, 2)), rng)),
    "mamba_none": lambda rng: (full(4), Group(MambaSpec(rng.choice((4, 1000)), "none", rng.choice((0, 1, 2))))),
    "cross": lambda rng: (full(4), Group(CrossAttentionSpec(rng.choice((2, 4))))),
    "context_parallel": lambda rng: (full(2),),
    "context_parallel_drafter": lambda rng: (full(2), window(2, rng, is_replicated=True)),
    "context_parallel_mamba": lambda rng: (full(1), mamba(4, rng)),
    "hybrid": _hybrid,
}
UNCACHED = {"mamba_none", "cross"}


def setting_of(kind: str, rng: random.Random) -> Setting:
    groups = KINDS[kind](rng)
    sizes = [group.spec.block_size for group in groups]
    num_tokens = rng.randint(20, 90)
    num_blocks = 2 + sum(-(-num_tokens // size) for size in sizes)
    num_ranks = rng.choice((2, 4)) if kind.startswith("context_parallel") else 1
    has_external = len(groups) == 1 and kind != "mamba" and rng.random() < 0.3
    return Setting(groups, num_blocks, kind not in UNCACHED, num_ranks, rng.choice((40, 1000)), has_external)


class Peer:
    """vLLM's classes."""

    def __init__(self) -> None:
        load_vllm()
        self.specs = importlib.import_module("vllm.v1.kv_cache_interface")
        self.manager = importlib.import_module("vllm.v1.core.kv_cache_manager").KVCacheManager
        self.request = importlib.import_module("vllm.v1.request").Request
        self.sampling = importlib.import_module("vllm.sampling_params").SamplingParams(max_tokens=1)
        managers = importlib.import_module("vllm.v1.core.single_type_kv_cache_manager")
        managers.register_all_kvcache_specs(None)
        # Hits that end inside a block are not offered here. Where vLLM can have none either, it publishes the places
        # nevertheless.
        coordinator: Any = importlib.import_module("vllm.v1.core.kv_cache_coordinator")
        coordinator.partial_hash_hits_enabled = _no
        managers.FullAttentionManager._cache_partial_tail_block = _no
        managers.MambaManager._cache_partial_tail_block = _no
        # After rejected draft tokens it is negative, which lessens the need of other groups: an error in a full pool.
        managers.MambaManager.get_num_blocks_to_allocate = _at_least_0(managers.MambaManager.get_num_blocks_to_allocate)
        scheduler = importlib.import_module("vllm.v1.core.sched.scheduler").Scheduler
        self.split = scheduler._mamba_block_aligned_split

    def config(self, setting: Setting) -> Any:
        groups = [self._group(f"layer {number}", group) for number, group in enumerate(setting.groups)]
        return self.specs.KVCacheConfig(num_blocks=setting.num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)

    def _group(self, layer: str, group: Group) -> Any:
        options = {"dcp_sharded": False} if group.is_replicated else {}
        return self.specs.KVCacheGroupSpec([layer], vllm_spec(self.specs, group.spec, group.peer, **options))


def _at_least_0(method: Callable[..., int]) -> Callable[..., int]:
    return lambda *args, **options: max(0, method(*args, **options))


def _no(*args: object, **options: object) -> None:
    """Return None, whatever is asked."""
